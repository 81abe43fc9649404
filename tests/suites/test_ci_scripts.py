"""The scripts in ci/: they parse, and say kindly what is missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ["ci/setup", "ci/demo", "ci/test", "ci/env.sh", "ci/bin/reframe", ".ci/run"]


def bash(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project that was never set up."""
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_parses_and_is_executable_unless_it_is_sourced(script: str) -> None:
    assert bash(f"bash -n {script}", ROOT).returncode == 0
    assert os.access(ROOT / script, os.X_OK) == (script != "ci/env.sh")


def test_without_a_new_enough_python_setup_says_what_to_install(clone: Path) -> None:
    done = bash("ci/setup", clone, PAR4D_PYTHON="/bin/false")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "setup: Par4D needs Python 3.11 or newer, which is not on PATH: install it, or set PAR4D_PYTHON to it."
    )


def test_sourcing_a_broken_environment_fails_and_leaves_the_shell_alive(clone: Path) -> None:
    done = bash(". ci/env.sh; echo status $?, alive", clone, PAR4D_PYTHON="/bin/false")
    assert done.stdout.strip() == "status 1, alive"
    assert "is not ready" in done.stderr
