"""Dry runs of the machines in tests/systems/machines, which are none of the project's systems."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from forked_python import FIRST
from running import ROOT, Run, reframe

MACHINES = ROOT / "tests" / "systems" / "machines"
THERE = f"import pathlib, systems; systems.FOLDER = pathlib.Path({str(MACHINES)!r})"
NIGHT = ("-c", "suites/weak_scaling.py", "-n", "point=night-[0-9]", "-S", "canary=yes")
"""Sixteen ranks."""


@cache
def _written(name: str, *words: str) -> list[tuple[str, str]]:
    with TemporaryDirectory(prefix="it's a Prüfung ") as folder:
        done = dry_run(Path(folder), name, *words)
        assert done.code == 0, done.out
        every = Path(folder).glob("stage/*/*/*/*/rfm_job.sh")
        return [(file.parents[2].name, file.read_text()) for file in every]


def scripts(name: str, *words: str, command: str = "train") -> dict[str, list[str]]:
    """Return the lines of the job scripts of a dry run that run a command of the engine, by partition."""
    return {part: text.splitlines() for part, text in _written(name, *words) if f" -m engine {command} " in text}


def dry_run(folder: Path, name: str, *words: str) -> Run:
    return reframe(folder, "--system", name, *words, PAR4D_ACCOUNT="abc123", **{FIRST: THERE})
