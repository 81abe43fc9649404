"""Gathers ahead of their use, and kept: the right values in every order of events, and how many are in flight when."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import nn
from virtual_ranks import LazyComm, run_ranks

from engine.comm.funnel import Comm, Lane
from engine.grid import SPLITTING_FEATURES, Axis, Grid
from engine.overlap.flags import Overlap
from engine.overlap.schedule import GatheredMemory, WeightSchedule
from engine.overlap.tasks import ONE_BY_ONE, Direction, StageTask
from engine.overlap.weight import ShardedWeight
from engine.placement import Constant, Placement
from engine.precision import Precision

T = TypeVar("T")
DEPTH = 2
Z = Grid(1, 1, 2, 1)
TILE = (2, 3)
TILE_BYTES = 2 * 3 * 8

HALVES = Direction.FORWARD, Direction.BACKWARD


class Watched(LazyComm):
    """Comm that counts the collectives of each lane: now in flight, the most at once, and all."""

    def watch(self) -> "Watched":
        self.now: Counter[tuple[Axis, Lane]] = Counter()
        self.most: Counter[tuple[Axis, Lane]] = Counter()
        self.all: Counter[tuple[Axis, Lane]] = Counter()
        return self

    def _start(self, kind, axis, lane, *others):  # type: ignore[no-untyped-def]
        self.now[axis, lane] += 1
        self.all[axis, lane] += 1
        self.most[axis, lane] = max(self.most[axis, lane], self.now[axis, lane])
        finish = super()._start(kind, axis, lane, *others)

        def landed() -> torch.Tensor:
            self.now[axis, lane] -= 1
            return finish()

        return landed


def some_weights(comm: Comm, count: int) -> list[ShardedWeight]:
    """Make weights of which number i is filled with i + 1."""
    weights = []
    for i in range(count):
        shard = nn.Parameter(torch.full((6 // comm.grid.z,), i + 1.0, dtype=torch.float64))
        weights.append(
            ShardedWeight(Placement(f"weight {i}", TILE, SPLITTING_FEATURES, True, Constant(0)), shard, TILE)
        )
    return weights


class Model:
    """Three weights and their schedule, on one rank."""

    def __init__(self, comm: Comm, overlap: Overlap) -> None:
        assert isinstance(comm, Watched)
        self.comm = comm.watch()
        self.weights = some_weights(comm, 3)
        self.schedule = WeightSchedule(comm, self.weights, [], Precision.parse("fp64"), overlap)

    def use(self, *numbers: int) -> list[int]:
        """Gather these weights in turn; return the gathers in flight after each."""
        found = []
        for number in numbers:
            tile = self.schedule.gather(self.weights[number])
            assert tile.shape == TILE
            assert tile.eq(self.weights[number].shard[0]).all()
            found.append(self.in_flight)
        return found

    def start_step(self, passes: int) -> None:
        self.passes = 0
        self.schedule.start_step(ONE_BY_ONE.order(0, 1, passes).known)

    def run_pass(self, *numbers: int) -> list[int]:
        """Use the first of these weights in a forward, and the others in a backward."""
        found = []
        for direction, used in zip(HALVES, (numbers[:1], numbers[1:]), strict=True):
            self.schedule.start_task(StageTask(direction, self.passes))
            found += self.use(*used)
        self.passes += 1
        return found

    def abort(self) -> None:
        self.comm.abandon()
        self.schedule.abort_step()

    def change(self) -> None:
        assert self.in_flight == 0
        for weight in self.weights:
            weight.shard.data += 10

    @property
    def in_flight(self) -> int:
        return self.comm.now[Axis.Z, Lane.GATHER]

    @property
    def gathers(self) -> int:
        return self.comm.all[Axis.Z, Lane.GATHER]


def on_each_rank(work: Callable[[Model], T], overlap: Overlap | None = None) -> T:
    overlap = overlap or Overlap(oag=True, prefetch_depth=DEPTH)
    return run_ranks(Z, lambda comm: work(Model(comm, overlap)), of=Watched)[0]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "engine.overlap.prefetch")
    return caplog


def test_the_learnt_order_is_followed_across_passes_and_not_across_steps(warnings: pytest.LogCaptureFixture) -> None:
    def work(model: Model) -> list[list[int]]:
        found = []
        for _ in range(2):
            model.start_step(3)
            found += [model.run_pass(0, 1, 2) for _ in range(3)]
            model.schedule.finish_step()
            model.change()
        return found

    ahead, ends = [DEPTH] * 3, [2, 1, 0]
    assert on_each_rank(work) == [[0, 0, 0], ahead, ends, ahead, ahead, ends]
    assert not warnings.records


def test_without_oag_nothing_is_gathered_ahead_in_any_order(warnings: pytest.LogCaptureFixture) -> None:
    def work(model: Model) -> list[list[int]]:
        model.start_step(3)
        return [model.run_pass(*order) for order in [(0, 1), (0, 1), (1, 0)]]

    assert on_each_rank(work, Overlap()) == [[0, 0]] * 3
    assert not warnings.records


@pytest.mark.parametrize("again", [(0, 2, 1), (0, 1), (0, 1, 2, 0)], ids=["other-order", "shorter", "longer"])
def test_a_pass_that_departs_is_told_once_and_learnt_by_the_next(
    again: tuple[int, ...], warnings: pytest.LogCaptureFixture
) -> None:
    def work(model: Model) -> list[int]:
        model.start_step(11)
        model.run_pass(0, 1, 2)
        for _ in range(3):
            model.run_pass(*again)
            model.run_pass(0, 1, 2)
        model.run_pass(*again)  # departs, or is found short when the next one begins
        learning = model.run_pass(*again)
        following = model.run_pass(*again)
        model.schedule.finish_step()
        model.change()
        return learning + following

    assert on_each_rank(work) == [0] * len(again) + [DEPTH] * len(again)
    assert len(warnings.records) == Z.size, "once on every rank"
    assert "weight " in warnings.records[0].getMessage()


def test_a_step_may_end_after_fewer_micro_batches_than_it_was_told_of() -> None:
    def work(model: Model) -> None:
        for _ in range(3):
            model.start_step(2)
            model.run_pass(0, 1, 2)
            model.schedule.finish_step()
            model.change()

    on_each_rank(work)


def test_an_evaluation_in_a_pass_leaves_it_as_it_is_even_if_it_fails(warnings: pytest.LogCaptureFixture) -> None:
    class Failure(Exception):
        pass

    def evaluate(model: Model) -> None:
        with model.schedule.evaluating():
            with model.schedule.evaluating():
                model.use(0)
            model.use(2)
            raise Failure

    def work(model: Model) -> list[list[int]]:
        found = []
        model.start_step(3)
        for _ in range(3):
            found.append(model.run_pass(0))
            with pytest.raises(Failure):
                evaluate(model)
            found.append(model.use(1, 2, 0))
        return found

    assert on_each_rank(work) == [[0], [0, 0, 0], [DEPTH], [DEPTH] * 3, [DEPTH], [2, 1, 0]]
    assert not warnings.records


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_after_an_abort_the_next_step_finds_no_old_values_and_no_half_order(
    passes: int, warnings: pytest.LogCaptureFixture
) -> None:
    def work(model: Model) -> list[list[int]]:
        model.schedule.cache(model.weights[2:])
        model.start_step(passes + 1)
        for _ in range(passes):
            model.run_pass(0, 1, 2, 2, 1)
        model.run_pass(0, 1, 2)
        model.abort()
        model.change()
        model.start_step(4)
        return [model.run_pass(0, 1, 2, 2, 1) for _ in range(3)]

    assert on_each_rank(work) == [[DEPTH if passes else 0] * 5, [DEPTH] * 5, [DEPTH] * 5]
    assert not warnings.records


def test_what_is_cached_is_gathered_once_a_pass_and_never_kept_for_the_next() -> None:
    def work(model: Model) -> GatheredMemory:
        model.schedule.cache(model.weights[:2])
        for _ in range(3):
            before = model.gathers
            model.start_step(1)
            model.run_pass(0, 1, 2, 1)
            model.schedule.finish_step()
            assert model.gathers - before == 3
            model.change()
            model.use(0)  # its second use in the pass never came
        model.start_step(1)
        model.run_pass(0, 1, 2)
        with model.schedule.evaluating():
            before = model.gathers
            model.use(1, 1)
            assert model.gathers - before == 2
        before = model.gathers
        model.use(1, 0)
        assert model.gathers == before
        model.use(0)  # less than before is kept now
        return model.schedule.gathered_memory

    overlap = Overlap(oag=False)
    assert on_each_rank(work, overlap) == GatheredMemory(prefetch_bytes=0, cache_bytes=2 * TILE_BYTES)
    on_each_rank(work)


@pytest.mark.parametrize("oag", [False, True], ids=["synchronous", "ahead"])
def test_the_order_is_learnt_once_whatever_is_cached_and_gathered_ahead(
    oag: bool, warnings: pytest.LogCaptureFixture
) -> None:
    """With the cache a weight's second use, and its fourth, needs no gather."""
    uses = (0, 1, 2, 2, 1, 0, 1, 1)
    caches = [([], 8), ([0, 1], 5), ([2], 7), ([1], 6), ([0, 1, 2], 4)]

    def work(model: Model) -> list[tuple[int, int]]:
        found = []
        for number, (cached, _) in enumerate(caches):
            model.schedule.switch(Overlap(oag=oag or number > 1, prefetch_depth=DEPTH))
            model.schedule.cache([model.weights[weight] for weight in cached])
            for _ in range(2):
                before = model.gathers
                model.start_step(1)
                ahead = model.run_pass(*uses)
                model.schedule.finish_step()
                model.change()
                found.append((model.gathers - before, max(ahead)))
        return found

    expected = [(count, DEPTH if oag or number > 1 else 0) for number, (_, count) in enumerate(caches) for _ in "ab"]
    expected[0] = (len(uses), 0)  # the one that learns
    assert on_each_rank(work) == expected
    assert not warnings.records


def test_a_weight_on_an_axis_of_one_rank_is_gathered_for_nothing() -> None:
    comm = Watched(Grid(), None, 0)  # type: ignore[arg-type]
    model = Model(comm, Overlap(oag=True))
    model.start_step(2)
    assert model.run_pass(0, 1) + model.run_pass(0, 1) == [0] * 4
    assert model.gathers == 0
    assert model.schedule.gathered_memory == GatheredMemory(0, 0)
