"""How stages are connected over NCCL, and what they never have in flight together, with torch's rules played."""

import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_parity import TOLERANCE
from test_pipeline import SCHEDULES, case_of, error
from torch import Tensor
from training import start, step_parallel
from virtual_ranks import run_ranks
from waiting import LONG_S

from engine.comm import nccl
from engine.comm.collective import Kind
from engine.comm.contact import Route
from engine.comm.funnel import Comm
from engine.comm.nccl import NcclMessages, groups_of
from engine.errors import RunError
from engine.grid import Grid
from engine.parallel import link, runner
from engine.parallel.link import StageLink

CPU = torch.device("cpu")


class Torch:
    """Process groups of NCCL as torch has them: a pair connects at its first message, and its communicator has one
    order.

    ways: of each communicator, from which ranks it carried messages after the first.
    """

    def __init__(self) -> None:
        self._meetings: dict[Any, threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
        self._met: set[Any] = set()
        self._lock, self.ways = threading.Lock(), defaultdict[Any, set[int]](set)

    def launch(self, kind: Kind, group: Any, source: Tensor, target: Tensor, peer: int, *, async_op: bool) -> Any:
        own = group.rank()
        pair = group.name, min(own, peer), max(own, peer)
        with self._lock:
            meeting, known = self._meetings[pair], (pair, own) in self._met
            self._met.add((pair, own))
            if known:
                self.ways[pair].add(own if kind is Kind.SEND else peer)
        if not known:
            meeting.wait(LONG_S)
        return SimpleNamespace(wait=lambda: None, is_completed=lambda: True)


def _on_every_rank(ranks: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_stages_that_post_their_receives_first_find_each_other_and_a_communicator_has_one_way(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    torch_s, done = Torch(), []
    monkeypatch.setattr(nccl, "launch", torch_s.launch)

    def stage(rank: int) -> None:
        def channel(lane: str) -> NcclMessages:
            groups: Any = [
                SimpleNamespace(rank=lambda: rank, size=lambda: ranks, name=f"{lane} {number}")
                for number in range(groups_of(ranks))
            ]
            return NcclMessages(groups, CPU, Route(rank, "on axis pipe", [], "nccl"))

        before, after, buffer = (rank - 1) % ranks, (rank + 1) % ranks, torch.zeros(1)
        forward, backward = channel("forward"), channel("backward")
        for lane, kind, peer in (
            (forward, Kind.RECV, before),
            (backward, Kind.RECV, after),
            (forward, Kind.SEND, after),
            (backward, Kind.SEND, before),
        ):
            lane.start(kind, buffer, buffer, peer, None, blocking=False)()
        done.append(rank)

    _on_every_rank(ranks, stage)
    assert sorted(done) == list(range(ranks))
    assert {len(ways) for ways in torch_s.ways.values()} == {1}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cold_step_posts_no_receive_before_it_is_wanted_and_trains_the_same(
    monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    posted: list[int] = []
    take = StageLink.take

    def taken(self: StageLink, task: Any) -> Tensor:
        posted.extend(map(len, self._coming.values()))
        return take(self, task)

    for module in (link, runner):
        monkeypatch.setattr(module, "device_waits", lambda comm: True)
    monkeypatch.setattr(StageLink, "take", taken)
    grid = Grid(x=2, pipe=2) if schedule in ("interleaved", "message-driven-zb") else Grid(pipe=4)
    assert error(case_of("gpt", everything=True, tied=True, layers=4), schedule, grid) < TOLERANCE
    assert set(posted) == {0}


def test_a_message_in_anothers_place_is_told_when_the_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = StageLink._tail
    for module in (link, runner):
        monkeypatch.setattr(module, "device_waits", lambda comm: True)
    monkeypatch.setattr(
        StageLink, "_tail", lambda self, task: tail(self, task._replace(number=task.number ^ self._stage))
    )
    with pytest.raises(RunError, match="lost, doubled or exchanged"):
        error(case_of("gpt", everything=False, tied=False, layers=2), "1f1b", Grid(pipe=2))


def test_only_the_first_step_under_each_schedule_is_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[int] = []
    start_step = StageLink.start_step

    def started(self: StageLink, expected: Any, *, ahead: bool = True) -> None:
        start_step(self, expected, ahead=ahead)
        posted.append(max(map(len, self._coming.values())))

    for module in (link, runner):
        monkeypatch.setattr(module, "device_waits", lambda comm: True)
    monkeypatch.setattr(StageLink, "start_step", started)
    case = case_of("gpt", everything=False, tied=False, layers=2)

    def steps(comm: Comm) -> None:
        driven = runner.Runner(start(case, comm))
        for step, name in enumerate(("1f1b", "1f1b", "message-driven-zb", "1f1b", "message-driven-zb")):
            driven.schedule = SCHEDULES[name]
            step_parallel(case, driven.model, step, runner=driven)

    run_ranks(Grid(pipe=2), steps)
    assert sorted(posted) == [0] * 4 + [1] * 6
