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

EQUALITY = (
    *("tests/engine/test_libraries.py", "tests/engine/test_compiled.py", "tests/engine/test_external_peers.py"),
    *("tests/engine/test_micro_batches.py", "tests/engine/test_mutations.py", "tests/engine/test_overlap.py"),
    *("tests/engine/test_parity.py", "tests/engine/test_parity_real.py", "tests/engine/test_peer_memory.py"),
    *("tests/engine/test_peers.py", "tests/engine/test_pipeline.py", "tests/engine/test_single_device.py"),
    *("tests/engine/test_streams.py", "tests/engine/test_unet_grid.py"),
    *("tests/engine/test_unet_real.py", "tests/engine/test_validation_figures.py", "tests/engine/test_volume.py"),
    "tests/suites/test_gpu_check_pipelines.py",
)
"""They are all files some of whose tests aren't run at each change, the libraries' first."""
ENDED_WITHOUT_ALL = "Not every library was tested, so the week's check can't be judged: the lines above say why."
INTERRUPTED_CODE = 2
"""Pytest's codes from here on are no verdict: 0 says that all is fine, and 1 that some tests failed."""


def weekly(out: Path, limit_s: float, root: Path = ROOT) -> int:
    """Make all environments of peers that aren't there, and train with each; returns a night's exit code.

    The week's check needs the internet, but no GPU and no job: ranks are processes of this host, and networks are tiny.
    Where a library couldn't be installed the code is UNKNOWN. out: the JUnit file of the equality tests.
    """
    ends = time.monotonic() + limit_s
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)  # nobody may take it for this week's
    _run([str(root / "ci" / "peers"), "all"], root, ends)
    code = _run([sys.executable, "-m", "pytest", *EQUALITY, "-rs", f"--junitxml={out}"], root, ends)
    if code == 1:
        say(
            "A library doesn't train what the engine trains, or a grid what one rank does, a wrong collective or a "
            "peer's memory went unseen, or one failed: the lines above say which."
        )
        return WORSE
    if code is None or code >= INTERRUPTED_CODE or code < 0 or _skipped(out):
        say(ENDED_WITHOUT_ALL)
        return UNKNOWN
    say("Every library trains what the engine trains.")
    return FINE


def _skipped(junit: Path) -> bool:
    """Say whether some tests were skipped, or none ran."""
    found = JUnitXml.fromfile(str(junit))
    found.update_statistics()
    return found.skipped > 0 or found.tests == 0


def _run(words: Sequence[str], root: Path, ends: float) -> int | None:
    """Return the exit code of a command; None if it didn't end in time. All that it started ends with this function."""
    running = subprocess.Popen(words, cwd=root, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return running.wait(max(ends - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        say(f"{Path(words[0]).name} took longer than --time-limit and was ended.")
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
