"""Runs ci/cluster, and what else takes no more than a moment."""

import subprocess
from pathlib import Path

from running import ROOT
from waiting import LONG_S

CLUSTER = ROOT / "ci" / "cluster"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False
    )


def message(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on standard error."""
    (line,) = done.stderr.splitlines()
    assert line.startswith("cluster: ")
    assert line.endswith(".")
    return line
