"""ci/weekly: when a week is fine, and that nothing outlives it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import test_libraries

from weekly import MARK, UNKNOWN

ROOT = Path(__file__).parents[2]


def week(folder: Path, peers: str, *words: str) -> "subprocess.Popen[str]":
    """The week of a project that has this ci/peers."""
    script = folder / "ci" / "peers"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n{peers}\n")
    script.chmod(0o755)
    own = shutil.copy(ROOT / "ci" / "weekly.py", script.parent)
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which takes longer than the rest
    return subprocess.Popen([sys.executable, "-P", own, *words], env=env, stderr=subprocess.PIPE, text=True)


def test_the_jobs_of_an_ended_week_end_with_it(tmp_path: Path) -> None:
    child = tmp_path / "pid"
    with week(tmp_path, "echo $$ > pid\nexec sleep 300") as running:
        assert soon(lambda: child.exists() and child.read_text().strip())
        pid = int(child.read_text())
        running.terminate()
        assert running.wait(200) == UNKNOWN
        assert soon(lambda: not Path(f"/proc/{pid}").exists())


def soon(happened: Callable[[], object]) -> bool:
    until = time.monotonic() + 200
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)
    return bool(happened())


WEEKS = [
    ("exit 0", "def test(): pass", 0, "Every library trains what the engine trains."),
    ("exit 0", "def test(): assert 1.0 == 1.03", 1, "A library, a grid or a schedule doesn't do what it has to"),
    ("exit 1", "import pytest\ndef test(): pytest.skip('not installed')", 2, "Not every library was tested"),
    ("exit 0", "import nothing_of_that_name", 2, "Not every library was tested"),
    ("exit 0", "", 2, "Not every library was tested"),
    ("exit 0", "import time\ndef test(): time.sleep(300)", 2, "Not every library was tested in time"),
]


@pytest.mark.parametrize(
    ("peers", "test", "code", "said"), WEEKS, ids=["fine", "unequal", "missing", "broken", "empty", "slow"]
)
def test_a_week_is_fine_only_if_every_library_was_tested(
    tmp_path: Path, peers: str, test: str, code: int, said: str
) -> None:
    for name, words in (("test_a.py", f"# pytest.{MARK}\n{test}"), ("test_b.py", "def test(): assert 0")):
        file = tmp_path / "tests" / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(words)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    with week(tmp_path, peers, "--minutes", "0.05" if "sleep" in test else "2") as running:
        _, err = running.communicate(timeout=200)
    assert running.returncode == code
    assert said in err
    assert (tmp_path / "results" / "weekly.xml").exists() == ("sleep" not in test)


def test_the_week_tests_every_library_that_has_pins() -> None:
    """And by the same file as ci/test, which leaves the marker out."""
    assert MARK in Path(test_libraries.__file__).read_text()
    pins = {file.stem for file in (ROOT / "engine" / "peers" / "external").glob("*.txt")}
    every = {str(one.id): bool(one.marks) for one in test_libraries.contests()}
    assert {name for name in pins if any(one.startswith(name) for one in every)} == pins
    each_change = [one for one, weekly in every.items() if not weekly]
    assert {name for name in pins if any(one.startswith(name) for one in each_change)} == {"megatron-core", "deepspeed"}
