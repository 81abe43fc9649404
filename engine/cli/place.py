"""Every command that measures begins so: it finds which process of the launch it is, and where its messages go."""

import os
from pathlib import Path

from engine.comm.launch import Launch, from_environment
from engine.loading import check
from engine.options import check_file
from engine.progress import log_to_stderr


def take_place(out: Path | None = None) -> Launch:
    """Find this process among all, and send its messages to stderr.

    Raises UsageError if out can't be written, or the environment tells OpenMP what it can't follow.
    """
    check(os.environ)
    if out is not None:
        check_file("--out", out)
    launch = from_environment(os.environ)
    log_to_stderr(launch.rank)
    return launch
