"""A network in stages trains as the serial model does, whatever the schedule, the grid of a stage and the arrivals."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from pipelines import make
from real_ranks import run_processes
from test_parity import BERT, EAGER, EVERYTHING, LLAMA, SMALL, TOLERANCE, VIT
from test_passes import gathers_once_known
from training import Case, Outcome, grid_id, start, step_parallel, train_parallel, train_serial, worst_error
from virtual_ranks import LazyComm, run_ranks

from engine.comm.collective import Kind, Lane
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.grid import Axis, Grid
from engine.overlap.flags import Overlap
from engine.overlap.tasks import StepSchedule
from engine.parallel.runner import Runner
from engine.pipeline.registry import NAMES
from engine.tensor_mode import SPLIT, SPLIT_HEADS, TensorMode

PASSES = 4
SCHEDULES: dict[str, StepSchedule] = {name: make(name) for name in NAMES if name != "one-by-one"}
DYNAMIC = ("message-driven", "message-driven-zb")
PLAIN = Overlap()
SHAPES = {"gpt": SMALL, "llama": LLAMA, "bert": BERT, "vit": VIT}
LAYERS = {2: 4, 3: 5, 4: 8}
"""By the number of stages: as many as two chunks a stage need, and where no schedule has these, unequal stages."""
STAGES = tuple(LAYERS)
OF_STAGE = {
    1: [Grid()],
    2: [Grid(x=2), Grid(y=2), Grid(z=2), Grid(data=2)],
    4: [Grid(2, 2), Grid(x=2, z=2), Grid(y=2, z=2), Grid(z=2, data=2), Grid(x=2, data=2)],
}
GRIDS = [grid.with_stages(stages) for stages in STAGES for grids in OF_STAGE.values() for grid in grids]


def case_of(family: str, *, everything: bool, tied: bool, layers: int = 8) -> Case:
    shape = replace(SHAPES[family], layers=layers)
    if family in ("gpt", "llama"):
        shape = replace(shape, tied=tied)
    if everything and family != "llama":
        shape = replace(shape, dropout=0.2)
    many = {"sequences": 16, "micro_batches": PASSES}
    return replace(EVERYTHING, config=shape, **many) if everything else Case(shape, overlap=PLAIN, **many)


@cache
def serial(case: Case) -> Outcome:
    return train_serial(case)


def error(case: Case, schedule: str, grid: Grid, *, of: type[LazyComm] = LazyComm) -> float:
    of_grid = replace(case, order=SCHEDULES[schedule])
    return worst_error(run_ranks(grid, lambda comm: train_parallel(of_grid, comm), of=of)[0], serial(case))


def _spread() -> Iterator[Any]:
    """Every grid with every schedule, in which families, tables and flags take turns: a twelfth of them every time."""
    families, schedules = list(SHAPES), list(SCHEDULES)
    for place, grid in enumerate(GRIDS):
        for number, schedule in enumerate(schedules):
            if schedule == "interleaved" and PASSES % grid.stages:
                continue
            turn = place + number
            often = () if (place + 2 * number) % 12 == 0 else pytest.mark.weekly
            yield pytest.param(families[turn % 4], schedule, turn % 3 > 0, turn % 2 == 0, grid, marks=often)


@pytest.mark.parametrize(("family", "schedule", "everything", "tied", "grid"), list(_spread()), ids=str)
def test_every_schedule_on_every_grid_trains_like_the_serial_model(
    family: str, schedule: str, everything: bool, tied: bool, grid: Grid
) -> None:
    case = case_of(family, everything=everything, tied=tied, layers=LAYERS[grid.stages])
    assert error(case, schedule, grid) < TOLERANCE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", ["1f1b", "message-driven-zb"])
@pytest.mark.parametrize("grid", [Grid(x=2, data=2), Grid(z=2, data=2), Grid(y=2, data=3)], ids=grid_id)
def test_it_does_so_with_stages_outside_data(grid: Grid, schedule: str) -> None:
    case = replace(case_of("gpt", everything=True, tied=True, layers=4), sequences=24)
    outside = replace(grid, pipe=2, pipe_outermost=True)
    everyone = run_ranks(outside, lambda comm: comm.gather_rows(torch.tensor([comm.rank])).flatten().tolist())
    assert everyone == [list(range(outside.size))] * outside.size
    assert error(case, schedule, outside) < TOLERANCE


@pytest.mark.sampled(5)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "message-driven-zb"])
@pytest.mark.parametrize("grid", [Grid(2, 2, pipe=2), Grid(y=2, data=2, pipe=2), Grid(x=2, z=2, pipe=2)], ids=grid_id)
@pytest.mark.parametrize("mode", [SPLIT, SPLIT_HEADS], ids=["rows", "heads"])
def test_it_does_so_with_split_activations(mode: TensorMode, grid: Grid, schedule: str) -> None:
    family = list(SHAPES)[len(schedule) % len(SHAPES)]
    case = replace(case_of(family, everything=True, tied=True, layers=4), sequences=32)
    ours = replace(case, order=SCHEDULES[schedule], mode=mode)
    assert worst_error(run_ranks(grid, lambda comm: train_parallel(ours, comm))[0], serial(case)) < TOLERANCE


class Late(LazyComm):
    """Its messages come late by chance, as the seed has it, and in any order between the two directions."""

    seed = 0

    def _start_message(self, kind, axis, lane, buffer, peer) -> Callable[[], None]:  # type: ignore[no-untyped-def]
        if kind is Kind.SEND and axis is Axis.PIPE and lane is not Lane.MAIN:
            self.sent = getattr(self, "sent", 0) + 1
            delay_s = random.Random(f"{self.seed} {self.rank} {self.sent}").choice((0, 0, 0.002))
            self.hub.yielding(lambda: time.sleep(delay_s))
        return super()._start_message(kind, axis, lane, buffer, peer)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grid", [Grid(pipe=3), Grid(x=2, pipe=2), Grid(z=2, data=2, pipe=2)], ids=grid_id)
@pytest.mark.parametrize("schedule", DYNAMIC)
def test_the_numbers_do_not_depend_on_arrival_to_the_bit(schedule: str, grid: Grid) -> None:
    case = replace(case_of("gpt", everything=True, tied=True, layers=grid.stages), order=SCHEDULES[schedule], steps=2)

    def trained(seed: int) -> Outcome:
        late = type("Late", (Late,), {"seed": seed})
        return run_ranks(grid, lambda comm: train_parallel(case, comm), of=late)[0]

    first = trained(0)
    for seed in (1, 2):
        other = trained(seed)
        assert first.losses == other.losses
        assert all(torch.equal(first.gradients[name], other.gradients[name]) for name in first.gradients)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_once_the_layers_are_known_gathers_are_ahead_of_their_use(schedule: str) -> None:
    case = replace(case_of("gpt", everything=True, tied=False, layers=4), order=SCHEDULES[schedule])
    assert [counted["late"] for counted in gathers_once_known(case, Grid(z=2, pipe=2))] == [0] * 4


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_keeps_no_more_than_its_schedule_says(schedule: str) -> None:
    case = replace(case_of("gpt", everything=False, tied=False), order=SCHEDULES[schedule], micro_batches=8)
    grid = Grid(pipe=4)

    def most(comm: Comm) -> tuple[int, int]:
        runner = Runner(start(case, comm), case.order)
        step_parallel(case, runner.model, 0, runner=runner)
        return runner.most_held, runner.most_pending

    for stage, (held, pending) in enumerate(run_ranks(grid, most, of=Late)):
        both, may_pend = case.order.live_passes(stage, grid.stages, case.micro_batches)
        assert held <= both + may_pend
        assert pending <= may_pend


@pytest.mark.parametrize("lane", [Lane.FORWARD, Lane.BACKWARD])
@pytest.mark.parametrize("fault", ["dropped", "doubled", "exchanged"])
def test_a_message_that_is_lost_doubled_or_exchanged_is_an_error(fault: str, lane: Lane) -> None:
    class Faulty(LazyComm):
        held: list[torch.Tensor]

        def _start_message(self, kind, axis, on, buffer, peer) -> Callable[[], None]:  # type: ignore[no-untyped-def]
            if (kind, axis, on) == (Kind.SEND, Axis.PIPE, lane):
                self.sent = getattr(self, "sent", 0) + 1
                if fault == "dropped" and self.sent == 2:
                    return lambda: None
                if fault == "doubled" and self.sent == 2:
                    super()._start_message(kind, axis, on, buffer, peer)
                if fault == "exchanged" and self.sent == 1:
                    self.held = [buffer]
                    return lambda: None
                if fault == "exchanged" and self.sent == 2:
                    finish = super()._start_message(kind, axis, on, buffer, peer)
                    super()._start_message(kind, axis, on, self.held.pop(), peer)
                    return finish
            return super()._start_message(kind, axis, on, buffer, peer)

    case = replace(case_of("gpt", everything=False, tied=False, layers=2), order=SCHEDULES["gpipe"])
    with pytest.raises(RunError, match="lost, doubled or exchanged"):
        run_ranks(Grid(pipe=2), lambda comm: train_parallel(case, comm), of=Faulty)


def test_a_micro_batch_that_counts_twice_breaks_parity() -> None:
    case = case_of("gpt", everything=False, tied=False, layers=2)

    def twice(comm: Comm) -> Outcome:
        return train_parallel(replace(case, order=SCHEDULES["1f1b"]), comm)

    def mutate(kind: Kind, axis: Axis, number: int) -> str | None:
        return "twice" if axis is Axis.PIPE and kind is Kind.ALL_REDUCE else None

    assert worst_error(run_ranks(Grid(pipe=2), twice)[0], serial(case)) < TOLERANCE
    assert worst_error(run_ranks(Grid(pipe=2), twice, mutate=mutate)[0], serial(case)) > 0.1


def _real(comm: Comm, case: Case) -> Outcome:
    return train_parallel(case, comm)


@pytest.mark.parametrize(
    ("schedule", "grid"),
    [
        *((name, Grid(x=2, pipe=2) if name == "interleaved" else Grid(z=2, pipe=2)) for name in SCHEDULES),
        ("1f1b", Grid(data=2, pipe=2, pipe_outermost=True)),
    ],
    ids=str,
)
def test_real_processes_train_like_the_serial_model(schedule: str, grid: Grid) -> None:
    case = replace(case_of("gpt", everything=True, tied=True, layers=4), overlap=replace(EAGER, cache=0))
    ours = run_processes(grid, _real, replace(case, order=SCHEDULES[schedule]))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE
