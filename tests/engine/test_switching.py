"""Overlap and cache that change between steps: one training, whatever the flags, and nothing is learnt twice."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from test_overlap import CASE, EVERY_COMBINATION, THREE_BLOCKS
from test_parity import EAGER, TOLERANCE, serial
from training import Outcome, grid_id, start, step_parallel, worst_error
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL, Overlap
from engine.overlap.prefetch import GatherMode, Prefetch
from engine.overlap.tasks import StageTask
from engine.parallel.serial_state import full_gradients, full_state_dict
from engine.training.trainer import Trainer
from engine.training_record import OptimConfig, Training

GRIDS = [Grid(2, 1, 2, 2), Grid(1, 2, 2, 1), Grid(1, 1, 4, 1), Grid(1, 1, 1, 2), Grid(2, 2, 1, 1)]
STEPS = 8
MODEL = GPTConfig("m", layers=3, hidden=16, heads=2, vocabulary=16, sequence=4)


def other_paces(seed: int) -> Iterator[Overlap]:
    """Yield flags and paces at random, the same on every rank."""
    drawing = random.Random(seed)
    while True:
        yield replace(
            drawing.choice(EVERY_COMBINATION),
            prefetch_depth=drawing.randint(1, 9),
            reduce_window=drawing.randint(1, 5),
            bucket_bytes=drawing.choice([1, 1e3, 1e9]),
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
@pytest.mark.parametrize("name", THREE_BLOCKS)
def test_whatever_is_switched_between_steps_it_trains_like_the_serial_model(name: str, grid: Grid) -> None:
    case = replace(CASE, config=THREE_BLOCKS[name], steps=STEPS, overlap=Overlap())

    def train(comm: Comm) -> Outcome:
        model, losses, gradients = start(case, comm), [], {}
        for step, overlap in zip(range(STEPS), other_paces(GRIDS.index(grid)), strict=False):
            model.switch(overlap)
            losses.append(step_parallel(case, model, step))
            if step == 0:
                gradients = full_gradients(model)
            for parameter in model.parameters():
                parameter.data.sub_(parameter.grad)  # type: ignore[arg-type]
        return Outcome(losses, gradients, full_state_dict(model))

    assert worst_error(run_ranks(grid, train)[0], serial(case)) < TOLERANCE


def test_overlap_never_changes_in_the_middle_of_a_step() -> None:
    def work(comm: Comm) -> None:
        model = start(CASE, comm)
        model.start_step()
        for change in (lambda: model.switch(Overlap()), lambda: model.cache_blocks(0)):
            with pytest.raises(RuntimeError, match="between steps"):
                change()
        assert (model.schedule.overlap, model.cached_blocks) == (CASE.overlap, EAGER.cache)
        model.abort_step()
        model.switch(Overlap())
        step_parallel(CASE, model, 0)
        model.switch(EAGER)
        assert (model.schedule.overlap, model.cached_blocks) == (EAGER, EAGER.cache)

    run_ranks(Grid(z=2), work)


def test_memory_is_told_of_each_overlap_by_itself() -> None:
    def told(comm: Comm) -> list[tuple[bool, bool, int]]:
        model, found = start(CASE, comm), []
        for step, flags in enumerate(["oag,cache=2", "none", "oag", "cache=1", "none"]):
            model.switch(Overlap.parse(flags))
            step_parallel(CASE, model, step)
            memory = model.gathered_memory
            found.append((memory.prefetch_bytes > 0, memory.cache_bytes > 0, model.cached_blocks))
        return found

    expected = [(True, True, 2), (False, False, 0), (True, False, 0), (False, True, 1), (False, False, 0)]
    assert run_ranks(Grid(z=2), told)[0] == expected


class Modes:
    """Modes of gathering of each rank's tasks, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, list[GatherMode]] = {}
        begin = Prefetch.start_task

        def start_task(prefetch: Prefetch, task: StageTask) -> None:
            begin(prefetch, task)
            self.of.setdefault(prefetch._comm.rank, []).append(prefetch._mode)

        monkeypatch.setattr(Prefetch, "start_task", start_task)


def trainer(comm: Comm, overlap: Overlap) -> Trainer:
    optim = OptimConfig(clip=0)
    training = Training(MODEL, Batch(4, micro=1), checkpoint_every=1, overlap=overlap, optim=optim)
    assert comm.recorder is not None
    return Trainer(training, MODEL.task.data.synthetic(), comm, comm.recorder)


def test_a_cache_that_is_sized_after_the_first_step_is_no_reason_to_learn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes = Modes(monkeypatch)

    def train(comm: Comm) -> list[int]:
        training, gathered = trainer(comm, replace(ALL, cache_bytes=1e9)), []
        assert comm.recorder is not None
        for _ in range(3):
            comm.recorder.clear()
            training.step()
            gathered.append(comm.recorder.total.tallies["all_gather", "z"].calls)
        return gathered

    of_the_layers, others, micro_batches = 3 * 4, 2, 2
    first, *counted = run_ranks(Grid(z=2), train, record=True)[0]
    assert first == micro_batches * (2 * of_the_layers + others)
    assert counted == [micro_batches * (of_the_layers + others)] * 2, "each layer once, as all are kept"
    assert modes.of == {rank: [GatherMode.LEARNING] * 2 + [GatherMode.FOLLOWING] * 10 for rank in (0, 1)}


SIX_BLOCKS = GPTConfig("m", layers=6, hidden=16, heads=2, vocabulary=16, sequence=4)
BLOCK_BYTES = 12 * 16 * 16 * 4


def _cached(comm: Comm, cache_bytes: float | None) -> tuple[int, int]:
    """Return the blocks that are kept before and after the first step."""
    overlap = replace(ALL, cache_bytes=cache_bytes)
    training = Training(SIX_BLOCKS, Batch(2), checkpoint_every=1, overlap=overlap)
    assert comm.recorder is not None
    work = Trainer(training, SIX_BLOCKS.task.data.synthetic(), comm, comm.recorder)
    before = work.model.cached_blocks
    work.step()
    return before, work.model.cached_blocks


def test_a_budget_is_filled_with_whole_blocks_and_no_more_than_there_are() -> None:
    for blocks, kept in ((0.5, 0), (3.5, 3), (100, 6)):
        budget = blocks * BLOCK_BYTES
        assert run_ranks(Grid(z=2), lambda comm, b=budget: _cached(comm, b), record=True) == [(0, kept)] * 2


def test_without_a_budget_the_ranks_of_a_host_share_half_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.training.trainer.free_bytes", lambda device: 2 * 2 * 4.5 * BLOCK_BYTES)
    assert run_ranks(Grid(z=2), lambda comm: _cached(comm, None), record=True) == [(0, 4)] * 2


def test_the_rank_with_the_least_memory_decides_for_all() -> None:
    def cached(comm: Comm) -> tuple[int, int]:
        return _cached(comm, (5.5 if comm.rank else 2.5) * BLOCK_BYTES)

    assert run_ranks(Grid(z=2), cached, record=True) == [(0, 2)] * 2
