"""A run of the command has one process after the other within the time there is, and its result grows."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from engine.errors import RunError, UsageError
from engine.files import cache_folder
from engine.result import provenance
from engine.result.schema import Provenance
from engine.result.schema.gpu_check import Finding, GpuCheck, read_findings, write
from gpu_check import budget, process
from gpu_check.checks import Check
from gpu_check.judges import MOST_PROCESSES

ENDED_BEFORE = "The command was ended before it came to this."


class There(NamedTuple):
    """Devices of the machine. devices: how many. name, memory_bytes, free_bytes, tf32: describe the first of them."""

    devices: int
    name: str
    memory_bytes: int
    free_bytes: int
    tf32: bool
    provenance: Provenance


@dataclass(slots=True)
class _Progress:
    """A check, and what has come of it so far. outs: its processes' files. took_s: how long the last process took."""

    check: Check
    findings: list[Finding]
    outs: list[Path] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def unsettled(self) -> bool:
        """Say whether another process may decide what none has yet."""
        statuses = {one.status for one in self.findings}
        return self.check.repeats and "undecided" in statuses and len(self.outs) < MOST_PROCESSES


class Session:
    """Runs the checks' processes. folder: has the logs, and what each process writes.

    The tuner's cache is below it and begins empty: what it takes to tune is to be measured. What Inductor compiles is
    kept where it is kept for every training.
    """

    def __init__(self, device: Literal["cuda", "cpu"], out: Path, minutes: float) -> None:
        self._device, self._out, self._minutes = device, out, minutes
        self._began, self._start = time.monotonic(), provenance.now()
        self.folder = out.absolute().with_name(f"{out.stem}-parts")
        self.folder.mkdir(parents=True, exist_ok=True)
        cache = self.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str((cache_folder() or cache) / "inductor")
        (cache / "torch" / "kernels").mkdir(parents=True)  # torch keeps those of NVRTC there, but makes no parents
        self._environment = {"XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": kept}
        self._cold = device == "cuda" and not any(Path(kept).glob("*"))  # nor where there is none

    def look(self) -> There:
        """Look at the machine. Raises UsageError without a device, RunError if torch can't say."""
        out = self.folder / "look.json"
        out.unlink(missing_ok=True)
        ended = self._process("look", ("gpu_check", "inside", "look", self._device, str(out)), budget.MOST_LOOK_S)
        if ended.fault is not None or not out.exists():
            raise RunError(f"PyTorch can't be asked for its devices. {ended.fault} (see {self._log('look')}).")
        seen = json.loads(out.read_text())
        found = Provenance.model_validate(seen["provenance"]).model_copy(update={"start": self._start})
        there = There(**seen | {"provenance": found})
        if not there.devices:
            raise UsageError(
                f"No GPU is visible to PyTorch {found.versions.get('torch', '')} here: take a machine with an NVIDIA "
                "or AMD GPU, name a Python with a PyTorch for it by PAR4D_PYTHON, or rehearse with --device cpu."
            )
        return there

    def carry_out(self, wanted: Sequence[Check], there: There) -> GpuCheck:
        """Run every check that there is time for, and then undecided ones again while there is time left.

        The result is written after each process, with the checks that are still to come.
        """
        if self._cold:
            _say("Nothing is compiled here yet: each check has twice its time at first.")
        progress = [_Progress(check, [_not_run(check.name, ENDED_BEFORE)]) for check in wanted]
        result = self._result(progress, there)
        for number, one in enumerate(progress, 1):
            write(result, self._out)
            self._first(one, f"{number}/{len(wanted)}")
            result = self._result(progress, there)
        while unsettled := [one for one in progress if one.unsettled and budget.PATIENCE * one.took_s <= self._left_s]:
            write(result, self._out)
            one = min(unsettled, key=lambda one: len(one.outs))
            self._take(one, f"undecided, process {len(one.outs) + 1} of")
            result = self._result(progress, there)
        write(result, self._out)
        return result

    @property
    def _left_s(self) -> float:
        return self._minutes * 60 - budget.RESERVE_S - (time.monotonic() - self._began)

    def _first(self, one: _Progress, place: str) -> None:
        """Run the processes that a check has before the next one."""
        check = one.check
        if self._left_s < check.least_s:
            why = f"Out of time: it takes {check.least_s:.0f} s or more of {self._minutes:g} minutes."
            _say(f"{place} {check.name}: not run, {why[0].lower()}{why[1:]}")
            one.findings = [_not_run(check.name, why)]
            return
        self._take(one, place)
        while one.unsettled and len(one.outs) < check.processes and self._left_s >= check.least_s:
            self._take(one, place)

    def _take(self, one: _Progress, place: str) -> None:
        """Run one process of the check, and judge it with those before it."""
        check = one.check
        _say(f"{place} {check.name} ...")
        name = check.slug if not one.outs else f"{check.slug}-{len(one.outs) + 1}"
        out = self.folder / f"{name}.json"
        out.unlink(missing_ok=True)  # of a run before
        left_s = self._left_s
        late_s = budget.late_s(check.least_s, self._device, cold=self._cold and not one.outs)
        one.outs.append(out)
        ended = self._process(name, (*check.words, str(out)), min(left_s, late_s))
        one.took_s = ended.seconds
        if ended.code is None and left_s < late_s:
            self._out_of_time(one, place, ended.seconds, out)
            return
        found = self._judged(check, name, one.outs, ended)
        outcomes = [finding.status for finding in found]
        counts = ", ".join(f"{outcomes.count(status)} {status}" for status in dict.fromkeys(outcomes))
        _say(f"{place} {check.name}: {counts}, {ended.seconds:.1f} s")
        one.findings = [finding.model_copy(update={"seconds": ended.seconds}) for finding in found]

    def _out_of_time(self, one: _Progress, place: str, seconds: float, out: Path) -> None:
        """Keep what a process that was ended with the minutes had found, or what others had found before."""
        one.outs.pop()
        why = f"Out of time: it was ended after {seconds:.0f} s, as {self._minutes:g} minutes were over."
        _say(f"{place} {one.check.name}: {why[0].lower()}{why[1:]}")
        if not one.outs:
            one.findings = [*read_findings(out), _not_run(one.check.name, why)]

    def _judged(self, check: Check, name: str, outs: Sequence[Path], ended: process.Ended) -> list[Finding]:
        """Say what a check's processes found, and that the last one failed if it did."""
        fault = ended.fault
        if fault is not None:
            failed = Finding(name=check.name, status="fail", sentence=f"{fault} (see {self._log(name)})")
            return [*read_findings(outs[-1]), failed]
        try:
            found, why = check.judge(outs), "It ended well and has found nothing."
        except Exception as error:  # the other checks are worth their time all the same
            found, why = [], f"What it wrote can't be judged: {type(error).__name__}: {error}"
        return found or [Finding(name=check.name, status="fail", sentence=why)]

    def _result(self, progress: Sequence[_Progress], there: There) -> GpuCheck:
        return GpuCheck(
            device=self._device,
            device_name=there.name,
            devices=there.devices,
            memory_bytes=there.memory_bytes,
            minutes=self._minutes,
            seconds=time.monotonic() - self._began,
            findings=tuple(finding for one in progress for finding in one.findings),
            provenance=there.provenance.model_copy(update={"end": provenance.now()}),
        )

    def _process(self, name: str, words: Sequence[str], timeout_s: float) -> process.Ended:
        return process.run(words, log=self._log(name), timeout_s=timeout_s, environment=self._environment)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _not_run(name: str, why: str) -> Finding:
    return Finding(name=name, status="not run", sentence=why)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
