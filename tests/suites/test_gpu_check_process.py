"""What a part of ci/gpu leaves behind, and the part that runs when the check itself is ended: real processes."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import LONG_S, heard

from engine import processes
from gpu_check import process

ROOT = Path(__file__).parents[2]
LEAVES = """
import os, subprocess, sys
held = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen(["sleep", "3600"], pass_fds=[held])
os.write(held, b".")
"""
"""Starts a process that sleeps, and holds a pipe open as long as it lives. Then the pipe says so."""
CHECK = """
import sys
from pathlib import Path
from engine.processes import end_by_signals
from gpu_check import process

end_by_signals()
process.run(["part", sys.argv[1]], log=Path("log"), timeout_s=3600, environment={})
"""

AT_ONCE = """
import os, signal, subprocess
right = subprocess.Popen.__init__

def begun(process, *given, **named):
    right(process, *given, **named)
    open("pid", "w").write(str(process.pid))
    os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen.__init__ = begun
"""
"""A signal comes before the check knows of the part that it has begun."""


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "ci")]))
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize(
    ("end", "code"),
    [("os.abort()", -signal.SIGABRT), ("", 0), ("import time; time.sleep(3600)", None)],
    ids=["crashes", "ends well", "hangs"],
)
def test_what_a_part_leaves_behind_is_killed(
    pipe: Path, monkeypatch: pytest.MonkeyPatch, end: str, code: int | None
) -> None:
    """The time of the one that hangs is over when it has begun."""
    (pipe.parent / "part.py").write_text(f"{LEAVES}{end}\n")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    if code is None:
        clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: LONG_S * len(select.select([reader], [], [], 0)[0]))
        monkeypatch.setattr(processes, "time", clock)
    ended = process.run(["part", str(pipe)], log=pipe.with_name("log"), timeout_s=LONG_S, environment={})
    assert ended.code == code, ended.last
    assert (heard(reader), heard(reader)) == (b".", b"")
    os.close(reader)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_check_that_is_ended_or_loses_its_terminal_ends_its_part(pipe: Path, number: signal.Signals) -> None:
    (pipe.parent / "part.py").write_text(f"{LEAVES}import time; time.sleep(3600)\n")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check = subprocess.Popen([sys.executable, "-c", CHECK, str(pipe)], cwd=pipe.parent)
    try:
        assert heard(reader) == b".", "it has begun"
        check.send_signal(number)
        check.send_signal(number)  # as a shell repeats what the terminal has said
        assert check.wait(LONG_S) == 128 + number
    finally:
        check.kill()
    assert heard(reader) == b"", "the end of the pipe"
    os.close(reader)


def test_what_a_check_is_told_to_ignore_does_not_end_it() -> None:
    """As by nohup."""
    code = (
        "import signal; from engine.processes import end_by_signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); end_by_signals(); signal.raise_signal(signal.SIGHUP)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "ci")])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=LONG_S, check=False).returncode == 0


def test_a_check_that_is_ended_while_it_begins_a_part_ends_that_too(pipe: Path) -> None:
    (pipe.parent / "part.py").write_text("import time; time.sleep(3600)\n")
    check = [sys.executable, "-c", AT_ONCE + CHECK, str(pipe)]
    assert subprocess.run(check, cwd=pipe.parent, timeout=LONG_S).returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pipe.with_name("pid").read_text()), 0)


def test_a_part_hears_signals(pipe: Path) -> None:
    (pipe.parent / "part.py").write_text("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n")
    ended = process.run(["part"], log=pipe.with_name("log"), timeout_s=LONG_S, environment={})
    assert (ended.code, ended.last) == (0, "set()")
