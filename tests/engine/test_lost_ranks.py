"""Ranks that are lost: who of a host's ranks is, and what the others and the result say."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from engine_command import SMALL, Forked, await_iteration, finish, start, train
from waiting import LONG_S, until

from engine.batch import Batch
from engine.comm import contact
from engine.comm.contact import Loss, Roster, Row, own_row
from engine.comm.launch import Launch
from engine.errors import RunError
from engine.models.choice import ModelChoice
from engine.result.schema import Result, read
from engine.training.checks import checked
from engine.training.config import TrainConfig
from engine.training.failure import RunReporter

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
    """Return the ranks' rows; this process gives another start each time, as an earlier roster may still listen."""
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


def test_after_an_announced_exit_who_is_gone_may_have_followed_it(others: list[subprocess.Popen[str]]) -> None:
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


def test_the_next_roster_of_a_process_receives_once_the_last_one_is_closed(others: list[subprocess.Popen[str]]) -> None:
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
    script = (
        "from engine.comm.contact import Roster, own_row; own = own_row(); "
        "mine = Roster(0, [own, (own[0], 2**22 + 1, 0)]); print(mine.whole, mine.watch())"
    )
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace of processes can be made here")
    command = [*unshare, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert done.stdout == "False {}\n"


def test_without_proc_nobody_is_known_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact, "_look", lambda process: None)
    mine = Roster(0, [(1, 1, 0), (1, 2, 0)])
    assert not mine.whole
    assert mine.watch() == {}


SHAPE = "--layers 4 --hidden 32 --heads 4 --vocab 64 --seq 16 --batch-size 8"
LIMITS = {signal.SIGKILL: str(LONG_S), signal.SIGSTOP: "40"}
"""Others wait so long for a rank that is stopped, which is far longer than for each other on a loaded machine."""
DEEP = [*SHAPE.split(), "--data", "synthetic", "--device", "cpu"]


def _fault(
    out: Path,
    victim: int,
    number: signal.Signals,
    *options: str,
    anew: bool = False,
    grid: str = "2x1x2x1",
    model: Sequence[str] = SMALL,
) -> Result:
    """Return the result of four ranks without end, of which one gets a signal in mid-run."""
    words = ["--grid", grid, "--iterations", "100000", "--out", str(out), *options]
    processes = start(4, "train", *model, *words, anew=anew)
    await_iteration(processes[0])
    processes[victim].send_signal(number)
    if number is signal.SIGSTOP:
        for rank in {0, 1, 2, 3} - {victim}:
            assert processes[rank].wait(LONG_S) == 1
        processes[victim].kill()
    codes, said = finish(processes)
    result = read(out)
    assert [code for rank, code in enumerate(codes) if rank != victim] == [1] * 3, said
    assert result.status == "failed"
    assert result.iterations
    return result


def _names(result: Result, *parts: str) -> None:
    assert all(re.search(part, result.reason or "") for part in parts), result.reason


def test_a_rank_killed_in_mid_run_ends_all_others_and_the_reason_names_it(tmp_path: Path) -> None:
    victim = 3
    result = _fault(tmp_path / "r.json", victim, signal.SIGKILL, anew=True)  # nothing is left of it
    assert result.diagnosis == "cause"
    _names(result, rf"Rank {victim} \(process \d+ on", " gone,", rf"with rank {victim}", r"iteration \d+ \(gloo: ")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stage_that_is_killed_or_stopped_ends_the_others_and_is_named(tmp_path: Path, number: signal.Signals) -> None:
    words = ["--schedule", "message-driven-zb", "--micro-batch", "1", "--timeout", LIMITS[number]]
    result = _fault(tmp_path / "r.json", 2, number, *words, grid="1x1x1x1p4", model=DEEP)
    assert result.diagnosis == "cause"
    lost = " gone," if number is signal.SIGKILL else " stopped,"
    _names(result, r"Rank 2 \(process \d+ on", lost, "so rank [013]", "(on axis pipe|in the pipeline) ")


def test_a_rank_that_alone_is_told_to_end_says_so(tmp_path: Path) -> None:
    result = _fault(tmp_path / "r.json", 1, signal.SIGTERM)
    _names(result, "^Rank 1 ", "SIGTERM", r"iteration \d+")


def test_a_killed_lone_rank_has_left_a_failed_result(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    processes = start(1, "train", *SMALL, "--iterations", "100000", "--out", str(out), anew=True)
    while not out.exists():  # before torch is there
        assert processes[0].poll() is None
        time.sleep(0.01)
    processes[0].send_signal(signal.SIGKILL)
    finish(processes)
    assert "killed" in (read(out).reason or "")


def test_a_late_failure_does_not_spoil_a_good_result(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert train(1, *SMALL, "--iterations", "2", "--warmup", "1", "--out", str(out))[0] == [0]
    config = TrainConfig(model=ModelChoice(model="gpt-test"), batch=Batch(8), data="synthetic", out=out)
    late = RunReporter(checked(config, 1), Launch(0, 1, 0, "none", "", 0))
    late.met = True
    late.report(RunError("Too late."))
    assert read(out).status == "ok"


def test_a_meeting_place_that_answers_no_more_holds_nobody_for_ever(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
        words = ["train", *SMALL, "--grid", "1x1x1x2", "--timeout", "2", "--meeting-timeout", "2", "--out", str(out)]
        codes, said = finish([Forked(os.environ | place, words)])
    assert codes == [1], said
    _names(read(out), "^Rank 1 of 2 ", " 4 s", f"127.0.0.1:{port}")
