"""Runs the `reframe` command in a folder of its own, with nothing of the user's configuration."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from forked_python import forked_python
from waiting import LONG_S

ROOT = Path(__file__).parents[2]
QUICK = ["-S", "most_bytes=400000"]
"""A small corpus."""
ONCE = ["-S", "checkpoint_activations=no"]
"""Nothing is computed twice: the first time that it is, PyTorch loads its compiler."""


def call(words: Sequence[str | Path], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of ci/ with nothing of the user's settings of Par4D."""
    return subprocess.run(
        words,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PAR4D_")} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run and the folder it ran in."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def script(self) -> str:
        """The job script, of which there has to be one."""
        (file,) = self.folder.glob("stage/**/rfm_job.sh")
        return file.read_text()

    def jobs(self, command: str) -> list[str]:
        """Return the job scripts that run this command of the engine."""
        every = [file.read_text() for file in self.folder.glob("stage/**/rfm_job.sh")]
        return [text for text in every if f" -m engine {command} " in text]

    @property
    def trainings(self) -> list[str]:
        """The job scripts of trainings."""
        return self.jobs("train")

    @property
    def scripts(self) -> dict[int, str]:
        """Return the scripts by number of ranks, of a study with one for each."""
        return {ranks(text): text for text in self.trainings}

    def cases(self) -> list[dict[str, Any]]:
        """The test cases of the run report."""
        (report,) = self.folder.glob("results/reframe/run-report-*.json")
        cases: list[dict[str, Any]] = json.loads(report.read_text())["runs"][0]["testcases"]
        return cases


LAUNCHED = "import sys; sys.executable = sys.argv.pop(1); from suites.launcher import main; main()"
"""The command, whose jobs and launchers take another Python."""


def reframe(folder: Path, *arguments: str, root: Path = ROOT, **environment: str) -> Run:
    """`reframe ...` of the project at root, run in folder, where `suites` is the project's: paths may be relative."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(forked_python()), "-m", "suites.launcher"]
    if root != ROOT:
        jobs = forked_python() if "local" in arguments and has_our_engine(root) else sys.executable
        command = [sys.executable, "-P", "-c", LAUNCHED, str(jobs)]
    if not (folder / "suites").exists():
        (folder / "suites").symlink_to(root / "suites")
    foreign = ("RFM_", "PAR4D_", "SBATCH_", "SLURM_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(
        [*command, "--nocolor", *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(root)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr, folder)


def succeed(folder: Path, *arguments: str, root: Path = ROOT, **environment: str) -> Run:
    """Run `reframe ...` as reframe() does, and assert that it ends well."""
    done = reframe(folder, *arguments, root=root, **environment)
    assert done.code == 0, done.out + done.err
    return done


def has_our_engine(root: Path) -> bool:
    """Whether nothing was changed in a copy's."""
    files = [file.relative_to(ROOT) for kind in ("py", "yaml") for file in ROOT.glob(f"engine/**/*.{kind}")]
    return all((root / file).stat().st_mtime_ns == (ROOT / file).stat().st_mtime_ns for file in files)


def project(folder: Path) -> Path:
    """A copy of the parts a suite needs, to change."""
    for part in ("engine", "suites", "systems"):
        shutil.copytree(ROOT / part, folder / "project" / part)  # what is compiled with it: it is valid until changed
    return folder / "project"


def short(folder: Path, *, peaks: Sequence[str]) -> Path:
    """A copy for short trainings on this machine: four sequences at once, and of these number formats the file of the
    machine has a peak, so that none is measured.
    """
    root = project(folder)
    file = root / "systems" / "local.yaml"
    local = yaml.safe_load(file.read_text())
    local["device"]["empirical_peak_flops"] = {name: {"value": 1e11, "source": "these tests"} for name in peaks}
    file.write_text(yaml.safe_dump(local))
    series = root / "suites" / "series.yaml"
    series.write_text(series.read_text().replace("sequences: 16\n", "sequences: 4\n"))
    return root


def figures(case: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a test case by name."""
    return {name.split(":")[-1]: value[0] for name, value in case["perfvalues"].items()}


def options(script: str, name: str) -> list[str]:
    """The values of an option of the launch line, or of a scheduler's directive, which may be there several times."""
    found = []
    for word, following in pairwise(script.split()):
        if word == name:
            found.append(following)
        elif word.startswith(f"{name}="):
            found.append(word.removeprefix(f"{name}="))
    return found


def option(script: str, name: str) -> str:
    """The first value of an option. Raises KeyError where there is none."""
    for value in options(script, name):
        return value
    raise KeyError(name)


def ranks(script: str) -> int:
    """How many processes a script starts."""
    for name in ("--ntasks", "--nrs", "--nproc-per-node"):
        with suppress(KeyError):
            return int(option(script, name))
    return 1


def limit_s(script: str) -> int:
    """The time of a job, of one that asks Slurm or LSF for it."""
    with suppress(KeyError):
        hours, minutes, seconds = map(int, option(script, "--time").split(":"))
        return 3600 * hours + 60 * minutes + seconds
    return 60 * int(option(script, "-W"))


def tells_a_hang_in_time(script: str, seconds: float | None = None) -> bool:
    """Whether a command gives up a collective, and a meeting, while its job has time for what follows.

    seconds: of the job, where no scheduler is asked for it.
    """
    seconds = seconds or limit_s(script)
    one, all_there = float(option(script, "--timeout")), float(option(script, "--meeting-timeout"))
    return 0 < one <= seconds / 4 and one <= 300 and 0 < all_there <= seconds / 2
