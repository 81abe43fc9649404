"""Passes in any order: several may be under way at once, and each has its own weights, masks and contributions."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from test_switching import trainer
from torch.multiprocessing.reductions import StorageWeakRef
from training import Case, Outcome, Written, grid_id, start, step_parallel, train_parallel, worst_error
from virtual_ranks import LazyComm, run_ranks

from engine.comm.funnel import Comm, Handle, Lane
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import Overlap
from engine.overlap.tasks import ONE_BY_ONE, StageTask, StepSchedule
from engine.overlap.weight import ShardedWeight
from engine.parallel.runner import Runner
from engine.pipeline.fixed_schedules import ZeroBubble

SHAPE = GPTConfig("tiny", layers=2, hidden=16, heads=4, vocabulary=32, sequence=4, tied=True, dropout=0.2)
ORDERS = {order: Written(order) for order in ("F0 F1 B0 B1", "F0 F1 B1 B0", "F0 F1 B0 F2 B1 B2")}
PLAIN = Overlap()
EAGER = Overlap(oar=True, ors=True, oag=True, cache=1, data=True, prefetch_depth=3, reduce_window=2, bucket_bytes=1e3)
RECOMPUTED = {
    Grid(): PLAIN,
    Grid(z=2): EAGER,
    Grid(x=2, y=2): replace(PLAIN, oar=True),
    Grid(z=2, data=2): EAGER,
    Grid(2, 1, 2, 1): EAGER,
}
KEPT = {Grid(z=2): PLAIN, Grid(data=2): replace(PLAIN, data=True), Grid(z=2, data=2): replace(EAGER, cache=0)}
ALONE = [replace(PLAIN, ors=True), replace(PLAIN, oag=True, prefetch_depth=3), replace(PLAIN, cache=1)]


def case_of(order: str, overlap: Overlap, *, checkpoint: bool) -> Case:
    passes = ORDERS[order].passes
    return Case(
        SHAPE, order=ORDERS[order], micro_batches=passes, sequences=4 * passes, overlap=overlap, checkpoint=checkpoint
    )


@cache
def trained(case: Case, grid: Grid) -> Outcome:
    return run_ranks(grid, lambda comm: train_parallel(case, comm))[0]


def identical(ours: Outcome, others: Outcome) -> bool:
    return ours.losses == others.losses and all(
        torch.equal(ours.gradients[name], others.gradients[name])
        and torch.equal(ours.parameters[name], others.parameters[name])
        for name in others.parameters
    )


def check(order: str, grid: Grid, overlap: Overlap, *, checkpoint: bool) -> None:
    case = case_of(order, overlap, checkpoint=checkpoint)
    ours, others = trained(case, grid), trained(replace(case, order=ONE_BY_ONE), grid)
    backwards = [task for task in order.split() if task.startswith("B")]
    if backwards == sorted(backwards):
        assert identical(ours, others), "gradients are added in the same order"
    assert worst_error(ours, others) < 1e-12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("grid", RECOMPUTED, ids=grid_id)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_recomputed_passes_trains_like_one_after_the_other(order: str, grid: Grid) -> None:
    check(order, grid, RECOMPUTED[grid], checkpoint=True)


@pytest.mark.parametrize("grid", KEPT, ids=grid_id)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_passes_trains_like_one_after_the_other(order: str, grid: Grid) -> None:
    check(order, grid, KEPT[grid], checkpoint=False)


@pytest.mark.parametrize("overlap", ALONE, ids=str)
def test_with_each_flag_alone_passes_may_be_under_way_together(overlap: Overlap) -> None:
    check("F0 F1 B0 F2 B1 B2", Grid(z=2), overlap, checkpoint=True)


class Gathers(LazyComm):
    """Comm that counts gathers: ahead of their use, and waited for where they are issued."""

    def count(self) -> "Gathers":
        self.counted: Counter[str] = Counter()
        return self

    def issue(self, kind, axis, *others, lane=Lane.MAIN, at_once=False, **rest) -> Handle:  # type: ignore[no-untyped-def]
        if lane is Lane.GATHER:
            self.counted["late" if at_once else "ahead"] += 1
        return super().issue(kind, axis, *others, lane=lane, at_once=at_once, **rest)


def gathers_once_known(case: Case, grid: Grid) -> list[Counter[str]]:
    """Return each rank's gathers of the second step, for which the first has learnt the order."""

    def gathers(comm: Comm) -> Counter[str]:
        assert isinstance(comm, Gathers)
        comm.count()
        model = start(case, comm)
        step_parallel(case, model, 0)
        comm.count()
        step_parallel(case, model, 1)
        return comm.counted

    return run_ranks(grid, gathers, of=Gathers)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("order", ORDERS)
def test_once_the_layers_are_known_every_gather_is_ahead_of_its_use(order: str, checkpoint: bool) -> None:
    case = case_of(order, EAGER, checkpoint=checkpoint)
    weights_of_block, of_a_tied_table, cached = 4, 2, 1
    blocks = case.config.layers + (case.config.layers - cached) * checkpoint
    for counted in gathers_once_known(case, Grid(z=2)):
        assert counted == {"ahead": case.micro_batches * (blocks * weights_of_block + of_a_tied_table)}


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
def test_a_passs_gathered_weights_are_released_with_its_backward(checkpoint: bool) -> None:
    case = case_of("F0 F1 B1 B0", EAGER, checkpoint=checkpoint)

    def alive(comm: Comm) -> list[int]:
        """Count the gathered weights that are still there after each task of a step that knows its layers."""
        model, gathered, found = start(case, comm), [], []
        step_parallel(case, model, 0)
        gather, start_task = model.schedule.gather, model.schedule.start_task

        def note_gather(weight: ShardedWeight) -> torch.Tensor:
            tile = gather(weight)
            gathered.append(StorageWeakRef(tile.untyped_storage()))
            return tile

        def note_task(task: StageTask) -> None:
            found.append(sum(not storage.expired() for storage in gathered))
            start_task(task)

        model.schedule.gather, model.schedule.start_task = note_gather, note_task  # type: ignore[method-assign]
        step_parallel(case, model, 1)
        return [*found[1:], sum(not storage.expired() for storage in gathered)]

    head, block = 1, 4
    of_pass = head + block * (1 if checkpoint else case.config.layers)
    assert run_ranks(Grid(z=2), alive)[0] == [of_pass, 2 * of_pass, of_pass, 0]


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
def test_weight_gradients_that_are_to_come_keep_what_they_are_made_of_alone(checkpoint: bool) -> None:
    """Inputs from the stage before are freed, and what a graph keeps of them."""
    case = replace(case_of("F0 F1 B0 B1", PLAIN, checkpoint=checkpoint), order=ZeroBubble())

    def alive(comm: Comm) -> list[int]:
        model, entered, found = start(case, comm), [], []
        run_blocks, start_task = model.module.run_blocks, model.schedule.start_task

        def note_blocks(x: torch.Tensor, *others: Any) -> torch.Tensor:
            entered.append(StorageWeakRef(x.untyped_storage()))
            return run_blocks(x, *others)

        def note_task(task: StageTask) -> None:
            found.append(sum(not storage.expired() for storage in entered))
            start_task(task)

        model.module.run_blocks, model.schedule.start_task = note_blocks, note_task  # type: ignore[method-assign, assignment]
        step_parallel(case, model, 0, runner=Runner(model, case.order))
        return found

    f0, b0, f1, b1, w0, w1 = run_ranks(Grid(pipe=2), alive)[1]
    assert (f0, b0, f1, b1, w0, w1) == (0, 1, 0, 1, 0, 0)


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("grid", [Grid(z=2), Grid(z=2, data=2)], ids=grid_id)
def test_an_order_that_no_step_expects_is_slower_and_not_wrong(grid: Grid, checkpoint: bool) -> None:
    case = case_of("F0 F1 B1 B0", EAGER, checkpoint=checkpoint)

    def gradients(comm: Comm, *, expected: bool) -> list[torch.Tensor]:
        model, found = start(case, comm), []
        if not expected:
            begin = model.schedule.start_step
            model.schedule.start_step = lambda tasks, **others: begin((), **others)  # type: ignore[method-assign]
        for step in range(3):
            step_parallel(case, model, step)
            found.append(model.flat_gradients.clone())
        return found

    ours, others = (run_ranks(grid, lambda comm, e=e: gradients(comm, expected=e))[0] for e in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))


def test_a_trainer_carries_out_the_order_that_it_is_given() -> None:
    def train(comm: Comm, order: StepSchedule) -> tuple[list[tuple[float, float]], list[str]]:
        training, phases = trainer(comm, EAGER), []
        training.runner.schedule = order
        mark = training.recorder.mark
        training.recorder.mark = lambda phase: (phases.append(phase), mark(phase))[1]  # type: ignore[method-assign]
        return [training.step()[:2] for _ in range(3)], phases

    (ours, phases), (others, _) = (
        run_ranks(Grid(z=2), lambda comm, o=order: train(comm, o), record=True)[0]
        for order in (ORDERS["F0 F1 B0 B1"], ONE_BY_ONE)
    )
    assert ours == others
    as_a_step_starts = ["forward"]
    assert phases == [*as_a_step_starts, *["forward"] * 2, *["backward"] * 2, "reduce", "optimizer"] * 3
