"""Staging without a cluster: what is refused before a job is submitted, and how one ends that can't be staged."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

import systems
from suites.staging import ARCHIVE, CantStage, command

ROOT = Path(__file__).parents[2]
(SLURM,) = systems.load("frontier").partitions
(LSF,) = systems.load("summit").partitions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of two files, packed after they were written."""
    folder = tmp_path / "a project"
    for name in ("engine/grid.py", "systems/measured/frontier.yaml", ARCHIVE):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (1000, 1000))
    return folder


def test_the_line_of_a_job_names_the_script_and_the_archive_wherever_they_are(root: Path) -> None:
    expected = [".", str(root / "ci" / "stage"), str(root / ARCHIVE)]
    assert shlex.split(command(SLURM, dry=False, root=root)) == expected


def test_what_was_measured_since_is_in_no_job(root: Path) -> None:
    os.utime(root / "systems" / "measured" / "frontier.yaml", (2000, 2000))
    assert command(SLURM, dry=False, root=root)


def test_a_change_since_packing_is_refused_by_name(root: Path) -> None:
    os.utime(root / "engine" / "grid.py", (1001, 1001))
    with pytest.raises(CantStage, match=r"grid\.py is newer than .*: run ci/pack again"):
        command(SLURM, dry=False, root=root)


def test_without_an_archive_only_a_dry_run_is_written(root: Path) -> None:
    (root / ARCHIVE).unlink()
    with pytest.raises(CantStage, match="run ci/pack first"):
        command(SLURM, dry=False, root=root)
    assert command(SLURM, dry=True, root=root)


def test_a_scheduler_that_copies_to_no_nodes_is_refused(root: Path) -> None:
    with pytest.raises(CantStage, match="which lsf doesn't have"):
        command(LSF, dry=True, root=root)


def test_a_job_that_cant_be_staged_says_so_and_ends_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Slurm's commands are stood in for: one node, which is this machine, and no room."""
    tools, node = tmp_path / "tools", tmp_path / "node"
    node.mkdir()
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n')
    (tools / "sbcast").write_text('#!/bin/sh\nls -d "$(dirname "$2")"\necho "sbcast: No space left" >&2\nexit 1\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    own = {"PAR4D_NODE_FOLDER": str(node), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    done = subprocess.run(
        ["bash", "-c", ". ci/stage archive.tar; echo alive"], cwd=ROOT, capture_output=True, text=True, timeout=60,
        env=os.environ | own | {"PATH": f"{tools}:{os.environ['PATH']}"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, f"{node}/par4d-7\n")
    assert done.stderr.splitlines()[0] == "sbcast: No space left"
    assert "leave out staged=yes." in done.stderr.splitlines()[1]
    assert list(node.iterdir()) == []
