"""Once a week: does every library that the engine is compared with train what the engine trains, in the memory that is
said of it, every grid, flag and schedule what the serial model does, is each wrong collective noticed, and are the
published times predicted as the model's page says?
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from junitparser import JUnitXml

from night.procedure import say
from night.session import ROOT
from reports.nights.report import FINE, UNKNOWN, WORSE

MARK = "mark.weekly"
"""Files with this leave some of their tests to the week, which runs all of theirs."""


def weekly(out: Path, limit_s: float, root: Path = ROOT) -> int:
    """Make all environments of peers that aren't there, and train with each; returns a night's exit code.

    The week's check needs the internet, but no GPU and no job: ranks are processes of this host, and networks are tiny.
    Where a library couldn't be installed the code is UNKNOWN. out: the JUnit file of the tests.
    """
    ends, code = time.monotonic() + limit_s, UNKNOWN
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)  # nobody may take it for this week's
    files = [str(path) for path in sorted(root.glob("tests/*/test_*.py")) if MARK in path.read_text()]
    pytest = [sys.executable, "-m", "pytest", *files, "-rs", f"--junitxml={out}"]
    for words in ([str(root / "ci" / "peers"), "all"], pytest):
        code = _run(words, root, ends)
    if code == 1:
        say("A library, a grid or a schedule doesn't do what it has to, as the lines above say.")
        return WORSE
    if code != 0 or any(suite.skipped or not suite.tests for suite in JUnitXml.fromfile(str(out))):
        say("Not every library was tested in time, so the week's check can't be judged: the lines above say why.")
        return UNKNOWN
    say("Every library trains what the engine trains.")
    return FINE


def _run(words: Sequence[str], root: Path, ends: float) -> int:
    """Return a command's exit code, UNKNOWN if it doesn't end in time. All that it started ends with this function."""
    running = subprocess.Popen(words, cwd=root, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return running.wait(max(ends - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        say(f"{Path(words[0]).name} took longer than --time-limit and was ended.")
        return UNKNOWN
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
