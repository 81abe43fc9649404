"""A text file is whole, the old one or the new one, wherever its writer ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LONG_S

from engine.files import write_text

OLD, NEW, MANY = "old", "new", 200_000

KILLED_IN_MID_WRITE = """
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # which Python ignores: the kernel ends the writer at this byte
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
"""
KILLED_BEFORE_IT_IS_ON_DISK = """
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
"""
AT_THE_LARGEST_SIZE = """
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
"""
ON_A_SMALL_DISK = ["unshare", "--mount", "sh", "-c", 'mount -n -t tmpfs -o size=64k tmpfs "$0" && exec "$@"']

REPLACE = """
import errno, json, os, resource, signal, sys
from pathlib import Path
from engine.files import write_text
path, old, new = Path(sys.argv[1]), "{old}", "{new}" * {times}
path.write_text(old)
{trouble}
try:
    write_text(path, new)
except OSError as error:
    json.dump([errno.errorcode[error.errno], path.read_text(), os.listdir(path.parent)], sys.stdout)
"""


def replace_in_child(path: Path, times: int, trouble: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    """A process that writes OLD and then, in trouble, NEW so many times; it prints what is there if that fails."""
    code = REPLACE.format(old=OLD, new=NEW, times=times, trouble=trouble)
    command = [*launcher, sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)


@pytest.mark.parametrize(
    ("times", "trouble", "end", "written"),
    [(MANY, KILLED_IN_MID_WRITE, signal.SIGXFSZ, 100_000), (1, KILLED_BEFORE_IT_IS_ON_DISK, signal.SIGKILL, len(NEW))],
    ids=["in mid-write", "before it is on disk"],
)
def test_a_writer_that_is_killed_leaves_the_old_file(
    times: int, trouble: str, end: signal.Signals, written: int, tmp_path: Path
) -> None:
    assert replace_in_child(tmp_path / "file", times, trouble).returncode == -end
    assert (tmp_path / "file").read_text() == OLD
    (half,) = set(tmp_path.iterdir()) - {tmp_path / "file"}
    assert half.stat().st_size == written
    assert half.name.startswith("."), "which nobody takes for a result"


@pytest.mark.parametrize(
    ("launcher", "trouble", "error"),
    [(ON_A_SMALL_DISK, "", "ENOSPC"), ([], AT_THE_LARGEST_SIZE, "EFBIG")],
    ids=["full disk", "largest size of a file"],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    launcher: list[str], trouble: str, error: str, tmp_path: Path
) -> None:
    folder = [str(tmp_path)] if launcher else []
    done = replace_in_child(tmp_path / "file", MANY, trouble, *launcher, *folder)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("a small disk can be mounted by root alone, and not here")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [error, OLD, ["file"]]


def test_what_is_written_replaces_the_old_file_and_makes_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "file"
    write_text(path, OLD)
    write_text(path, NEW)
    assert path.read_text() == NEW
    assert list(path.parent.iterdir()) == [path]
