"""Every executable of ci/ tells what it does, and refuses an argument that it doesn't know."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import call

ROOT = Path(__file__).parents[2]
COMMANDS = [file.name for file in sorted((ROOT / "ci").iterdir()) if file.is_file() and os.access(file, os.X_OK)]


def run(command: str, folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | environment
    return call([folder / "ci" / command, *words], folder, **environment)


def test_there_are_commands() -> None:
    assert {"setup", "demo", "demo_images", "pack", "python", "test", "gpu", "weekly"} <= {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_what_a_command_does_and_does_nothing(command: str) -> None:
    done = run(command, ROOT, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) > 15
    assert f"ci/{command}" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_argument_is_refused_in_one_line(command: str) -> None:
    done = run(command, ROOT, "--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith((f"{command}: ", "Unknown option: --nonsense"))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["setup", "demo", "pack", "python", "gpu", "peers", "test"])
def test_help_needs_no_environment(command: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    shutil.copytree(ROOT / "engine" / "peers" / "external", tmp_path / "engine" / "peers" / "external")
    done = run(command, tmp_path, "--help", PAR4D_PYTHON="/bin/false")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / ".venv").exists()
