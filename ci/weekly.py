"""Do the libraries of ci/peers still train what the engine trains? Once a week, in some minutes.

    ci/weekly
    ci/weekly --minutes 110 --junit weekly.xml

It makes all environments of peers that aren't there, which takes the internet, and runs the tests of which ci/test
leaves a part to the week: does every library train what the engine trains, in the memory that is said of it, every
grid, flag and schedule what the serial model does, is each wrong collective noticed, and are the published times
predicted as the model's page says? No GPU or job is needed: ranks are processes of this host, and networks are tiny.

exit code: 0 fine, 1 something is not as it has to be, 2 couldn't test all of it, as where a library can't be installed.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FINE, WRONG, UNKNOWN = 0, 1, 2
MARK = "mark.weekly"
"""Files with this leave some of their tests to the week, which runs all of theirs."""


def main() -> int:
    options = argparse.ArgumentParser(
        "ci/weekly", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--minutes", metavar="N", type=float, default=240, help="to take at most (default: 240)")
    options.add_argument("--junit", metavar="FILE", type=Path, default=ROOT / "results" / "weekly.xml",
                         help="gets the outcome of every test (default: results/weekly.xml)")  # fmt: skip
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNKNOWN))  # so that what was started ends, as by an interrupt
    ends, junit = time.monotonic() + 60 * given.minutes, given.junit.resolve()
    junit.parent.mkdir(parents=True, exist_ok=True)
    junit.unlink(missing_ok=True)  # nobody may take it for this week's
    files = [str(path) for path in sorted(ROOT.glob("tests/*/test_*.py")) if MARK in path.read_text()]
    _run([str(ROOT / "ci" / "peers"), "all"], ends)  # tests of what is missing skip
    code = _run([sys.executable, "-m", "pytest", *files, "-rs", f"--junitxml={junit}"], ends)
    suites = list(ElementTree.parse(junit).iter("testsuite")) if junit.exists() else []
    if code == 1 and suites:
        _say("A library, a grid or a schedule doesn't do what it has to, as the lines above say.")
        return WRONG
    if code != 0 or any(int(suite.get("skipped", "0")) or not int(suite.get("tests", "0")) for suite in suites):
        _say("Not every library was tested in time, so the week's check can't be judged: the lines above say why.")
        return UNKNOWN
    _say("Every library trains what the engine trains.")
    return FINE


def _run(words: Sequence[str], ends: float) -> int:
    """Return a command's exit code, UNKNOWN if it doesn't end in time. All that it started ends with this function."""
    running = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return running.wait(max(ends - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        _say(f"{Path(words[0]).name} took longer than --minutes and was ended.")
        return UNKNOWN
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _say(sentence: str) -> None:
    sys.stderr.write(f"weekly: {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # an exit code of 1 would blame a library
        traceback.print_exc()
        code = UNKNOWN
    sys.exit(code)
