"""Staging without a cluster: what is refused before a job is submitted, and how one ends that can't be staged."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from waiting import LONG_S

import systems
from suites.base.launch import ARCHIVE, NotStaged, staging_command

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
    assert shlex.split(staging_command(SLURM, dry=False, root=root)) == expected


def test_what_was_measured_since_is_in_no_job(root: Path) -> None:
    os.utime(root / "systems" / "measured" / "frontier.yaml", (2000, 2000))
    assert staging_command(SLURM, dry=False, root=root)


def test_a_change_since_packing_is_refused_by_name(root: Path) -> None:
    os.utime(root / "engine" / "grid.py", (1001, 1001))
    with pytest.raises(NotStaged, match=r"grid\.py is newer than .*: run ci/pack again"):
        staging_command(SLURM, dry=False, root=root)


def test_without_an_archive_only_a_dry_run_is_written(root: Path) -> None:
    (root / ARCHIVE).unlink()
    with pytest.raises(NotStaged, match="run ci/pack first"):
        staging_command(SLURM, dry=False, root=root)
    assert staging_command(SLURM, dry=True, root=root)


def test_a_scheduler_that_copies_to_no_nodes_is_refused(root: Path) -> None:
    with pytest.raises(NotStaged, match="which lsf doesn't have"):
        staging_command(LSF, dry=True, root=root)


SRUN = """#!/bin/sh
while [ "$1" != sh ]; do shift; done
exec "$@"
"""
JOB = """
. ci/stage {archive}
cat "$PAR4D_STAGED"/{{.venv-peers,engine}}/name
printenv PYTHONPATH PAR4D_STAGED
echo $PYTHONSAFEPATH
"""


def staged(folder: Path, archive: Path, sbcast: str) -> subprocess.CompletedProcess[str]:
    """A job of one node, which is this machine: Slurm's commands are stood in for."""
    (folder / "tools").mkdir()
    (folder / "node").mkdir()
    for name, text in {"srun": SRUN, "sbcast": f"#!/bin/sh\n{sbcast}\n"}.items():
        (folder / "tools" / name).write_text(text)
        (folder / "tools" / name).chmod(0o755)
    job = {"PAR4D_NODE_FOLDER": str(folder / "node"), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    own = {"PATH": f"{folder}/tools:{os.environ['PATH']}", "PYTHONPATH": "/a/view"}
    return subprocess.run(
        ["bash", "-c", JOB.format(archive=archive)],
        cwd=ROOT,
        env=os.environ | job | own,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def test_a_staged_job_finds_the_project_before_all_else_and_peers_where_they_are(tmp_path: Path) -> None:
    for folder in (".venv-peers", "engine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{folder}\n")
    subprocess.run(["tar", "-cf", tmp_path / "packed", "-C", tmp_path, "engine"], check=True, timeout=LONG_S)
    done = staged(tmp_path, tmp_path / "packed", 'cp "$1" "$2"')
    own = tmp_path / "node" / "par4d-7"
    assert done.stdout.splitlines()[1:] == [".venv-peers", "engine", f"{own}:/a/view", "1"], done.stderr
    assert not own.exists()


def test_a_job_that_cant_be_staged_says_so_and_ends_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = staged(tmp_path, tmp_path / "packed", 'ls "$(dirname "$(dirname "$2")")"; echo "No space left" >&2; exit 1')
    assert (done.returncode, done.stdout) == (1, "par4d-7\n")
    assert done.stderr.splitlines()[0] == "No space left"
    assert "leave out staged=yes." in done.stderr.splitlines()[1]
    assert list((tmp_path / "node").iterdir()) == []
