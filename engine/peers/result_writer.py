"""Result of a command, with what its comparisons measured so far, or why one failed."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from engine.comm.launch import Launch
from engine.errors import ContactError
from engine.models.flops import model_flops
from engine.peers.comparison import Case, Comparison
from engine.peers.memory import SideBytes, side_bytes
from engine.peers.ranks import OWN, Job
from engine.peers.registry import record_settings
from engine.reporter import UNFINISHED, Reporter, Status
from engine.result import provenance
from engine.result.schema import Diagnosis
from engine.result.schema.machine import BindingFault, Bindings
from engine.result.schema.peers import Asked, ContestResult, Peaks, PeersResult, Work, read, write

log = logging.getLogger(__name__)


class ResultWriter(Reporter[PeersResult]):
    """Result of a command on one of its ranks. Only rank 0 knows of comparisons that were run."""

    def __init__(
        self,
        case: Case,
        device: Literal["cpu", "cuda"],
        comparisons: Sequence[Comparison],
        labels: dict[str, str],
        launch: Launch,
        out: Path,
    ) -> None:
        super().__init__(launch, out, read, write)
        self._case, self._device, self._labels = case, device, labels
        self._asked = [self._ask(comparison) for comparison in comparisons]
        self._ended: list[ContestResult] = []
        self._jobs: list[Job] = []
        self.comparison = ""
        """Name of the one that the command is at."""

    def add(self, contest: ContestResult, jobs: Sequence[Job]) -> PeersResult:
        """Add a comparison and write all so far; the result is whole when all that were asked for are among them."""
        self._ended.append(contest)
        known = {fault.kind for fault in self._faults()}
        self._jobs += jobs
        if self.launch.world_size == 1:  # else the ranks have said so
            for fault in self._faults():
                if fault.kind not in known:
                    log.warning("%s", fault.said)
        return self._write_so_far()

    def _faults(self) -> tuple[BindingFault, ...]:
        """List what is wrong with how ranks are bound, each kind once: jobs may be of other numbers of ranks."""
        faults = [fault for job in self._jobs if job.bindings for fault in job.bindings.faults]
        return tuple({fault.kind: fault for fault in reversed(faults)}.values())[::-1]

    def _bindings(self) -> Bindings | None:
        """Return those of the last job, with what is wrong in any."""
        known = [job.bindings for job in self._jobs if job.bindings is not None]
        return known[-1].model_copy(update={"faults": self._faults()}) if known else None

    def missing(self, comparison: Comparison, reason: str) -> PeersResult:
        """Note why a comparison can't be run here, and write all so far."""
        place = self._asked.index(self._ask(comparison))
        self._asked[place] = self._asked[place].model_copy(update={"missing": reason})
        return self._write_so_far()

    def _ask(self, comparison: Comparison) -> Asked:
        return Asked(**asked_fields(comparison, side_bytes(comparison, self._case, self._device)))

    def _write_so_far(self) -> PeersResult:
        whole = len(self._ended) == sum(asked.missing is None for asked in self._asked)
        if whole:
            return self.succeed(self.document("ok", None, None))
        return self.succeed(self.document("failed", UNFINISHED, "nothing"))

    def when(self, error: Exception) -> str:
        return "" if isinstance(error, ContactError) else f"in the comparison with {self.comparison}"

    def document(self, status: Status, reason: str | None, diagnosis: Diagnosis | None) -> PeersResult:
        return PeersResult(
            status=status,
            reason=reason,
            told=diagnosis,
            labels=self._labels,
            device=self._device,
            dtype=self._case.precision,
            case=self._options(),
            work=self._work(),
            peaks=self._peaks(),
            contests=tuple(self._asked),
            comparisons=tuple(self._ended),
            transport=self._jobs[-1].transport if self._jobs else None,
            provenance=provenance.collect(
                start=self.start,
                launcher=self.launch.launcher if self.launch.world_size > 1 else OWN,
                hosts=[host for job in self._jobs for host in job.hosts],
                devices=[device for job in self._jobs for device in job.devices],
                clocks=[clock for job in self._jobs for clock in job.clocks],
                bindings=self._bindings(),
            ),
        )

    def _options(self) -> dict[str, Any]:
        """Return every option as it came out."""
        case, options = self._case, asdict(self._case)
        del options["batch"]
        options |= {"sequences": case.batch.sequences, "micro_batch": case.batch.micro, "family": case.model.family}
        return options | case.sums | {"device": self._device}

    def _work(self) -> Work:
        case, model, sequences = self._case, self._case.model, self._case.batch.sequences
        return Work(
            tokens=sequences * model.sequence, model_flops=model_flops(model, sequences), hardware_flops=case.flops
        )

    def _peaks(self) -> Peaks:
        measured = max((job.peak_flops_per_s or 0.0 for job in self._jobs), default=0.0)
        return Peaks(
            advertised=self._case.peak_flops,
            empirical=measured or self._case.empirical_peak_flops,
            measured=measured > 0,
        )


def asked_fields(comparison: Comparison, needed: SideBytes | None = None) -> dict[str, Any]:
    """Return what the file says of a comparison. needed: by a rank, where it is known."""
    return {
        "peer": comparison.name,
        "peer_is": comparison.peer,
        "grid": str(comparison.grid),
        "ranks": comparison.grid.size,
        "target": comparison.target,
        "layout": str(comparison.layout) if comparison.layout else None,
        "does": comparison.does,
        "settings": record_settings(comparison.name),
        "needs": needed and (round(needed.ours), round(needed.peer)),
    }
