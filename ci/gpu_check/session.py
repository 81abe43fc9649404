"""One run of the command: its processes one after the other, within the time there is, and the result as it grows."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from engine.errors import RunError, UsageError
from engine.result import provenance
from engine.result.gpu_check import Finding, GpuCheck, read_findings, write
from engine.result.schema import Provenance
from gpu_check import process
from gpu_check.checks import Check

RESERVE_S = 10.0
"""Of the time there is, for what lies between and after the processes."""
LOOK_S = 90.0
ENDED_BEFORE = "The command was ended before it came to this."


class There(NamedTuple):
    """What the machine has: so many devices, and of the first its name and memory."""

    devices: int
    name: str
    memory_bytes: int
    tf32: bool
    provenance: Provenance


class Session:
    """folder: of the logs, and of what each process writes."""

    def __init__(self, device: Literal["cuda", "cpu"], out: Path, minutes: float) -> None:
        self._device, self._out, self._minutes = device, out, minutes
        self._began, self._start = time.monotonic(), provenance.now()
        self.folder = out.absolute().with_name(f"{out.stem}-parts")
        self.folder.mkdir(parents=True, exist_ok=True)

    def look(self) -> There:
        """Raises UsageError without a device, RunError where torch can't tell."""
        out = self.folder / "look.json"
        out.unlink(missing_ok=True)
        ended = self._process("look", ("gpu_check", "inside", "look", self._device, str(out)), LOOK_S)
        if ended.fault is not None or not out.exists():
            raise RunError(f"PyTorch can't be asked for its devices. {ended.fault} (see {self._log('look')}).")
        told = json.loads(out.read_text())
        found = Provenance.model_validate(told["provenance"]).model_copy(update={"start": self._start})
        there = There(**told | {"provenance": found})
        if not there.devices:
            raise UsageError(
                f"No GPU is visible to PyTorch {found.versions.get('torch', '')} here: take a machine with an NVIDIA "
                "or AMD GPU, name a Python with a PyTorch for it by PAR4D_PYTHON, or rehearse with --device cpu."
            )
        return there

    def carry_out(self, wanted: Sequence[Check], there: There) -> GpuCheck:
        """Every check that there is time for. The result is written after each, with those that are still to come."""
        done: list[Finding] = []
        result = self._result(done, wanted, there)
        for number, check in enumerate(wanted, 1):
            write(result, self._out)
            found = self._one(check, f"{number}/{len(wanted)}")
            done += found
            result = self._result(done, wanted[number:], there)
        write(result, self._out)
        return result

    @property
    def _left_s(self) -> float:
        return self._minutes * 60 - RESERVE_S - (time.monotonic() - self._began)

    def _one(self, check: Check, place: str) -> list[Finding]:
        if self._left_s < check.least_s:
            why = f"Out of time: it takes {check.least_s:.0f} s or more of {self._minutes:g} minutes."
            _say(f"{place} {check.name}: not run, {why[0].lower()}{why[1:]}")
            return [Finding(name=check.name, status="not run", sentence=why)]
        _say(f"{place} {check.name} ...")
        out = self.folder / f"{check.slug}.json"
        out.unlink(missing_ok=True)  # of a run before
        ended = self._process(check.slug, (*check.words, str(out)), min(check.most_s, self._left_s))
        found = self._judged(check, out, ended)
        told = {status: sum(one.status == status for one in found) for status in ("pass", "fail", "told", "not run")}
        counts = ", ".join(f"{count} {status}" for status, count in told.items() if count)
        _say(f"{place} {check.name}: {counts}, {ended.seconds:.1f} s")
        return [one.model_copy(update={"seconds": ended.seconds}) for one in found]

    def _judged(self, check: Check, out: Path, ended: process.Ended) -> list[Finding]:
        """What the process found, and that it failed if it did."""
        fault = ended.fault
        if fault is not None:
            failed = Finding(name=check.name, status="fail", sentence=f"{fault} (see {self._log(check.slug)})")
            return [*read_findings(out), failed]
        try:
            found, why = check.judge(out), "It ended well and has found nothing."
        except Exception as error:  # the other checks are worth their time all the same
            found, why = [], f"What it wrote can't be judged: {type(error).__name__}: {error}"
        return found or [Finding(name=check.name, status="fail", sentence=why)]

    def _result(self, done: Sequence[Finding], left: Sequence[Check], there: There) -> GpuCheck:
        to_come = [Finding(name=check.name, status="not run", sentence=ENDED_BEFORE) for check in left]
        return GpuCheck(
            device=self._device,
            device_name=there.name,
            devices=there.devices,
            memory_bytes=there.memory_bytes,
            minutes=self._minutes,
            seconds=time.monotonic() - self._began,
            findings=(*done, *to_come),
            provenance=there.provenance.model_copy(update={"end": provenance.now()}),
        )

    def _process(self, name: str, words: Sequence[str], timeout_s: float) -> process.Ended:
        """The tuner's cache is a new one: what it takes to tune is to be measured."""
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        return process.run(words, log=self._log(name), timeout_s=timeout_s, environment=cache)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
