"""Clones of this checkout's last commit, with a further commit in which the engine is slower."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
GIT_TIMEOUT_S = 120


def clone(folder: Path) -> Path:
    """Clone the last commit."""
    git(ROOT, "clone", "--quiet", str(ROOT), str(folder))
    return folder


def plant(folder: Path, file: str, code: str) -> Path:
    """Commit code at the end of a file of a clone."""
    with (folder / file).open("a") as of:
        of.write(code)
    author = ("-c", "user.name=proof", "-c", "user.email=proof@localhost")
    git(folder, *author, "commit", "--quiet", "--all", "--message", "engine: get slower")
    return folder


def git(folder: Path, *words: str) -> str:
    """Return what git says of a working tree. Raises CalledProcessError, TimeoutExpired."""
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, timeout=GIT_TIMEOUT_S, capture_output=True, text=True).stdout.strip()
