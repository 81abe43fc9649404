"""Who of a host's ranks is lost: real processes, signals and /proc."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import LONG_S, until

from engine.comm import contact
from engine.comm.contact import Loss, Roster, Row, own_row

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

DIFFERENT = itertools.count(1)
RANK = "import sys; from engine.comm.contact import own_row; print(*own_row(), flush=True); sys.stdin.read()"


@pytest.fixture
def others() -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks 1 and 2, which wait for the end of their input; this process is rank 0."""
    command = [sys.executable, "-c", RANK]
    made = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield made
    for process in made:
        process.kill()
        process.communicate(timeout=LONG_S)


def rows(others: list[subprocess.Popen[str]]) -> list[Row]:
    """This process says another start each time, as a run that failed in it before may still listen as its own."""
    host, number, started = own_row()
    found = [(host, number, started + next(DIFFERENT))]
    for process in others:
        assert process.stdout is not None
        host, number, started = map(int, process.stdout.readline().split())
        found.append((host, number, started))
    return found


def test_a_rank_that_is_killed_is_gone_and_one_that_is_stopped_is_stopped(others: list[subprocess.Popen[str]]) -> None:
    mine = Roster(0, rows(others))
    assert mine.whole
    assert mine.lost() == {}
    others[0].send_signal(signal.SIGSTOP)
    until(mine.lost)
    assert mine.lost() == {1: Loss.STOPPED}
    others[1].kill()
    until(lambda: len(mine.lost()) == 2)  # not reaped yet
    assert mine.lost() == {1: Loss.STOPPED, 2: Loss.GONE}
    others[1].wait(LONG_S)
    assert mine.watch() == {1: Loss.STOPPED, 2: Loss.GONE}
    assert f"rank 2 (process {others[1].pid} on " in mine.describe(mine.lost())
    others[0].send_signal(signal.SIGCONT)
    until(lambda: len(mine.lost()) == 1)


def test_after_a_goodbye_who_is_gone_may_have_followed_it(others: list[subprocess.Popen[str]]) -> None:
    every = rows(others)
    mine, theirs = Roster(0, every), Roster(1, every)
    others[1].kill()
    until(mine.lost)
    theirs.announce_exit()
    assert mine.exit_announced()
    assert mine.lost() == mine.watch() == {}
    others[0].send_signal(signal.SIGSTOP)
    until(mine.lost)
    assert mine.lost() == {1: Loss.STOPPED}, "nobody stops because of another"


def test_the_next_roster_of_a_process_hears_once_the_last_one_is_closed(others: list[subprocess.Popen[str]]) -> None:
    every = rows(others)
    for _ in range(2):
        mine = Roster(0, every)
        Roster(1, every).announce_exit()
        assert mine.exit_announced()
        mine.close()
        assert not mine.exit_announced()


def test_another_process_of_the_same_number_is_not_the_rank(others: list[subprocess.Popen[str]]) -> None:
    own, (host, number, started), last = rows(others)
    assert Roster(0, [own, (host, number, started - 1), last]).lost() == {1: Loss.GONE}


def test_ranks_of_other_hosts_are_nobody_to_look_for(others: list[subprocess.Popen[str]]) -> None:
    own, (host, number, started), last = rows(others)
    mine = Roster(0, [own, (host + 1, number, started), last])
    others[0].kill()
    others[0].wait(LONG_S)
    assert not mine.whole
    assert mine.lost() == {}


def test_one_that_is_dying_is_gone_before_its_parent_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = contact._look(os.getpid())
    assert seen is not None
    host, number, started = own_row()
    dying = contact._Seen("R", exiting=True, started=started)
    monkeypatch.setattr(contact, "_look", lambda process: dying if process == 1 else seen)
    assert Roster(0, [(host, number, started), (host, 1, started)]).lost() == {1: Loss.GONE}


def test_by_the_proc_of_other_processes_nobody_is_known_to_be_lost() -> None:
    """In a namespace of processes of its own, with the /proc of the one outside."""
    code = (
        "from engine.comm.contact import Roster, own_row; own = own_row(); "
        "mine = Roster(0, [own, (own[0], 2**22 + 1, 0)]); print(mine.whole, mine.watch())"
    )
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    command = [*unshare, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert done.stdout == "False {}\n"


def test_without_proc_nobody_is_known_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact, "_look", lambda process: None)
    mine = Roster(0, [(1, 1, 0), (1, 2, 0)])
    assert not mine.whole
    assert mine.watch() == {}
