"""A rank that stands still ends by itself and says for whom it waits; one that is only slow goes on."""

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_command import SMALL, start
from external_cases import GPT
from real_ranks import CONTEXT
from trainers import trainer_of
from waiting import LONG_S

from engine import reporter
from engine.batch import Batch
from engine.bench.groups import Party
from engine.comm.backend import nothing
from engine.comm.collective import Kind, Lane
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import ContactError, RunError
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder
from engine.models.choice import ModelChoice
from engine.peers.alternate import watch_turns
from engine.peers.comparison import Case
from engine.peers.registry import COMPARISONS
from engine.peers.watchdog import timed, warm_up
from engine.result.schema import Result, read
from engine.training import stall
from engine.training.config import TrainConfig
from engine.training.failure import RunReporter
from engine.training.stall import Stalled, Watch, watched
from engine.training.trainer import Trainer

GRID = Grid(x=2, z=3)
ONE = torch.ones(1)


class Channel:
    """Channel whose waits are as a test says; by default the device's, as those of NCCL."""

    def __init__(self, finish: Callable[[], None] = nothing) -> None:
        self.rank, self._finish = 2, finish

    def channel(self, *_: Any) -> "Channel":
        return self

    def start(self, *_: Any, **__: Any) -> Callable[[], None]:
        return self._finish


@pytest.fixture
def signal_pipe() -> Any:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_on_cuda_a_rank_that_waits_for_its_device_tells_what_it_issued_last(signal_pipe: tuple[int, int]) -> None:
    comm, told = Comm(GRID, device="cuda", backend=Channel()), list[Stalled]()
    reader, writer = signal_pipe

    def end(stalled: Stalled) -> None:
        told.append(stalled)
        os.write(writer, b"\0")

    comm.run(Kind.ALL_REDUCE, Axis.X, ONE)
    comm.issue(Kind.ALL_GATHER, Axis.Z, ONE, lane=Lane.GATHER).wait()
    with watched(comm, 0.2, end):
        os.read(reader, 1)  # as a synchronisation that never ends: in C, without Python's lock
    assert re.match(r"Rank 2.*0, 4.*z gather\)", str(told[0]))
    assert "for rank 4 on" in told[0].story([4, 5])


def test_a_host_that_waits_for_a_collective_itself_tells_that_one(signal_pipe: tuple[int, int]) -> None:
    reader, writer = signal_pipe
    comm, told = Comm(GRID, backend=Channel(lambda: bool(os.read(reader, 1)) or None)), list[Stalled]()

    def end(stalled: Stalled) -> None:
        told.append(stalled)
        os.write(writer, b"\0")

    with watched(comm, 0.1, end):
        waited = comm.issue(Kind.ALL_REDUCE, Axis.X, ONE)
        comm.issue(Kind.ALL_GATHER, Axis.Z, ONE)
        waited.wait()
    assert re.search(r"rank 3.*x \(all_reduce", str(told[0]))


def test_a_watch_that_is_over_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeing the thread's process groups while the interpreter ends would abort the process."""
    monkeypatch.setattr(stall, "LONGEST_PAUSE_S", LONG_S)
    for _ in range(20):
        with watched(Comm(GRID, backend=Channel()), 100, lambda _: None):
            assert any(thread.name == "stall" for thread in threading.enumerate())
        assert not any(thread.name == "stall" for thread in threading.enumerate())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rank_that_is_slow_but_moves_is_left_alone(device: str) -> None:
    comm = Comm(GRID, device=device, backend=Channel())
    watch = Watch(comm, 10)
    for step in range(5):
        comm.run(Kind.ALL_REDUCE, Axis.X, ONE)
        assert watch.look(9.0 * step) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_takes_long_without_waiting_for_anybody_is_no_hang(device: str) -> None:
    comm = Comm(GRID, device=device, backend=Channel())
    watch = Watch(comm, 10)
    comm.run(Kind.ALL_REDUCE, Axis.X, ONE)
    assert watch.look(0) is None
    if device == "cuda":
        assert watch.look(11) is not None
        comm.outstanding.mark_synchronised()
    assert watch.look(20) is None
    assert watch.look(1e6) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_in_a_contest_the_engine_stands_still_only_at_a_turn_of_its_own_and_by_its_limit(
    device: str, signal_pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in ("BEFORE_NCCL", "AFTER_RAISING"):
        monkeypatch.setattr(stall, factor, 0.04)
    monkeypatch.setattr(stall, "LONGEST_PAUSE_S", 0.02)
    reader, writer = signal_pipe
    finish = nothing if device == "cuda" else lambda: bool(os.read(reader, 1)) or None
    comm, told = Comm(GRID, device=device, backend=Channel(finish)), list[ContactError]()
    contest, case = COMPARISONS["megatron-core"], Case(GPT, Batch(2), timeout_s=5, meeting_timeout_s=600)

    def wait_for_another_rank() -> None:
        comm.run(Kind.ALL_REDUCE, Axis.X, ONE)
        if device == "cuda":
            os.read(reader, 1)
            comm.outstanding.mark_synchronised()

    def fail(error: ContactError) -> None:
        told.append(error)
        os.write(writer, b"\0")

    with watch_turns(comm, contest, case, fail) as at:
        late = [warm_up("ours", contest, case), warm_up("peer", contest, case), timed("peer", contest, case, 0)]
        for turn in late:
            at(turn)
            threading.Timer(0.5, os.write, [writer, b"\0"]).start()
            wait_for_another_rank()
        assert not told
        at(timed("ours", contest, case, 0))
        wait_for_another_rank()
    (error,) = told
    assert re.search(r"megatron-core.*rank 2", str(error))


def test_a_step_a_barrier_and_a_row_of_everyones_show_that_all_before_is_over() -> None:
    grid, recorder = Grid(x=2, z=2), Recorder()
    config = TrainConfig(model=ModelChoice(model="gpt-test"), grid=grid, batch=Batch(4), data="synthetic")
    comm = Comm(grid, backend=Channel(), recorder=recorder)
    trainer = trainer_of(config, comm)
    for settle in (trainer.step, comm.barrier, lambda: comm.gather_rows(ONE)):
        comm.run(Kind.ALL_REDUCE, Axis.X, ONE)
        assert comm.outstanding.unconfirmed is not None
        settle()
        assert comm.outstanding.unconfirmed is None


STANDS = 2


def _never_raise() -> Callable[[], None]:
    """Return what shortens the rank's limit to seconds: gloo's own wait raises much later."""
    watches, allow = list[Watch](), Watch.allow

    def allowed(watch: Watch, timeout_s: float) -> None:
        allow(watch, timeout_s)
        watches.append(watch)

    def hurry() -> None:
        for watch in watches:
            watch.limit_s = 3.0

    Watch.allow = allowed  # type: ignore[method-assign]
    return hurry


def _stand_still() -> None:
    """Stop rank 1."""
    step, hurry = Trainer.step, _never_raise()

    def stuck(trainer: Trainer) -> object:
        if trainer.done == STANDS:
            if trainer.comm.rank == 1:
                time.sleep(10 * LONG_S)
            hurry()
        return step(trainer)

    Trainer.step = stuck  # type: ignore[method-assign, assignment]


def _left_by_a_hang(out: Path, before: Callable[[], None], *words: str) -> Result:
    """Return the result of two ranks of which rank 1 hangs and rank 0 ends by itself, with the same words."""
    waiting, stuck = start(2, *words, "--timeout", str(LONG_S), "--out", str(out), before=before)
    try:
        _, said = waiting.communicate(timeout=LONG_S)
        assert stuck.poll() is None
    finally:
        stuck.kill()
        stuck.communicate(timeout=LONG_S)
    assert waiting.returncode == 1, said
    result = read(out)
    assert str(result.reason) in said
    return result


def test_a_hang_that_no_back_end_ends_leaves_a_failed_result_before_the_time_out(tmp_path: Path) -> None:
    words = ["train", *SMALL, "--grid", "1x1x2x1", "--iterations", "5"]
    result = _left_by_a_hang(tmp_path / "r.json", _stand_still, *words)
    assert (result.status, result.diagnosis, len(result.iterations)) == ("failed", "symptom", STANDS)
    assert re.match(r"Rank 0.*rank 1.*iteration 2.\(", result.reason or "")


def _send_nothing() -> None:
    """Keep rank 1 out of what groups of ranks are timed at."""
    seconds, hurry = Party.seconds, _never_raise()

    def timed(*given: Any) -> float:
        if os.environ["RANK"] == "1":
            time.sleep(10 * LONG_S)
        hurry()
        return seconds(*given)

    Party.seconds = timed  # type: ignore[method-assign, assignment]


def test_so_does_a_hang_in_a_measurement(tmp_path: Path) -> None:
    words = ["bench", "collectives", "--bytes", "65536", "--device", "cpu"]
    result = _left_by_a_hang(tmp_path / "r.json", _send_nothing, *words)
    assert (result.kind, result.status, result.diagnosis, result.ranks) == ("collectives", "failed", "symptom", 2)
    assert re.match(r"Rank 0.*rank 1.*data \(all_gather", result.reason or "")


def test_a_rank_of_several_groups_waits_for_those_of_its_own() -> None:
    told = list[Stalled | None]()

    def look() -> None:
        watch.look(0)
        told.append(watch.look(10))

    comm, own = Comm(GRID, backend=Channel(look)), Channel(look)
    own.rank, watch = 0, Watch(comm, 1)
    party = Party([(0, 4), (2, 5)], comm, lambda *_: own)
    party.seconds(lambda comm: comm.run(Kind.ALL_REDUCE, Axis.DATA, ONE), 1)
    comm.run(Kind.ALL_REDUCE, Axis.Z, ONE)
    assert "for rank 5 on" in str(told[0])
    assert "ranks 0, 4 on" in str(told[1])


def _fail_without_end() -> None:
    reporter.REPORT_S = 0.1
    nowhere: Any = SimpleNamespace(config=SimpleNamespace(out=Path("nowhere")))
    silent = RunReporter(nowhere, Launch(0, 1, 0, "test", "", 0))
    silent.report = lambda _: time.sleep(10 * LONG_S)  # type: ignore[method-assign, assignment, return-value]
    silent.fail(RunError("It can't be told."))


def test_a_process_that_can_not_even_tell_ends_all_the_same() -> None:
    process = CONTEXT.Process(target=_fail_without_end, daemon=True)
    process.start()
    process.join(LONG_S)
    assert process.exitcode == 1
