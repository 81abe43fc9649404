"""The result of a measurement says that it has failed, from before its ranks meet until they have measured."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from engine.bench.benchmark import Benchmark
from engine.comm.launch import Launch
from engine.errors import EngineError
from engine.files import locked
from engine.result import provenance
from engine.result.binding import Bindings
from engine.result.schema import Result, read, write
from engine.training.failure import LOCK_S, UNFINISHED, end_after
from engine.training.gathered import Ranks

log = logging.getLogger(__name__)


class Begun:
    """It holds the result of a measurement that has begun.

    It is written at once, so that even a measurement that is killed says that it didn't end.
    """

    def __init__(
        self, benchmark: Benchmark, launch: Launch, device: torch.device, labels: dict[str, str], out: Path
    ) -> None:
        self._rank, self._out = launch.rank, out
        self.bindings: Bindings | None = None
        """Of all ranks; known to rank 0, once the ranks have met."""
        self._result = Result(
            kind=benchmark.kind,
            status="failed",
            reason=UNFINISHED,
            told="nothing",
            labels=labels,
            config={"device": device.type, **benchmark.config, "threads": torch.get_num_threads()},
            ranks=launch.world_size,
            dtype=benchmark.dtype,
            provenance=provenance.collect(
                start=provenance.now(), launcher=launch.launcher, devices=[provenance.device_name(device)]
            ),
        )
        self._write(self._result)

    def fail(self, error: EngineError) -> NoReturn:
        """Write why, unless another rank has, and end this process, whatever its main thread is at.

        The ranks have met, so that a file that is there is surely theirs.
        """

        def report() -> None:
            log.error("%s", error)
            with suppress(EngineError, OSError), locked(self._out.parent, LOCK_S):
                present = read(self._out)
                if present.told == "nothing":
                    ended = present.provenance.model_copy(update={"end": provenance.now()})
                    update = {"reason": str(error), "told": "symptom", "provenance": ended}
                    write(present.model_copy(update=update), self._out)

        end_after(report)

    def end(self, reason: str | None, ranks: Ranks | None, found: Mapping[str, Any]) -> Result:
        """Write the result on rank 0, and return it.

        reason: why it has failed. ranks: what they say of themselves, if they could. found: fields that were measured.
        """
        origin: dict[str, Any] = {"end": provenance.now(), "bindings": self.bindings}
        if ranks is not None:
            origin |= {"hosts": tuple(dict.fromkeys(ranks.hosts)), "devices": tuple(dict.fromkeys(ranks.devices))}
            origin |= {"clocks_hz": provenance.least(ranks.clocks)}
            found = {"transport": ranks.transport, **found}
        ended = self._result.provenance.model_copy(update=origin)
        outcome = {"status": "failed" if reason else "ok", "reason": reason, "told": None, "provenance": ended}
        result = self._result.model_copy(update={**found, **outcome})
        self._write(result)
        return result

    def _write(self, result: Result) -> None:
        if self._rank == 0:
            write(result, self._out)
