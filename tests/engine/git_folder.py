"""A folder under Git, whatever the user's own configuration makes of commits."""

import os
import subprocess
from pathlib import Path

from waiting import LONG_S

ALONE = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""No key signs, no hook runs."""


def committed(folder: Path) -> Path:
    """Commit all that is in the folder, which need not be there, nor a repository."""
    folder.mkdir(exist_ok=True)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--allow-empty", "--message", "x"]):
        subprocess.run([*git, *words], env=os.environ | ALONE, check=True, timeout=LONG_S)
    return folder
