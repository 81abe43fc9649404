"""cache="auto" is settled after the first step, alike on all ranks, by the one that has the least memory left."""

from dataclasses import replace

import pytest
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL
from engine.training import trainer
from engine.training_record import Training

MODEL = GPTConfig("m", layers=6, hidden=16, heads=2, vocabulary=16, sequence=4)
BLOCK_BYTES = 12 * 16 * 16 * 4


def _cached(comm: Comm, cache_bytes: float | None) -> tuple[int, int]:
    """Blocks that are kept before and after the first step."""
    overlap = replace(ALL, cache_bytes=cache_bytes)
    training = Training(MODEL, Batch(2), checkpoint_every=1, overlap=overlap)
    assert comm.recorder is not None
    work = trainer.Trainer(training, MODEL.task.data.synthetic(), comm, comm.recorder)
    before = work.model.cached_blocks
    work.step()
    return before, work.model.cached_blocks


def test_a_budget_is_filled_with_whole_blocks_and_no_more_than_there_are() -> None:
    for blocks, kept in ((0.5, 0), (3.5, 3), (100, 6)):
        budget = blocks * BLOCK_BYTES
        assert run_ranks(Grid(z=2), lambda comm, b=budget: _cached(comm, b), record=True) == [(0, kept)] * 2


def test_without_a_budget_the_ranks_of_a_host_share_half_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "free_bytes", lambda device: 2 * 2 * 4.5 * BLOCK_BYTES)
    assert run_ranks(Grid(z=2), lambda comm: _cached(comm, None), record=True) == [(0, 4)] * 2


def test_the_rank_with_the_least_memory_decides_for_all() -> None:
    def cached(comm: Comm) -> tuple[int, int]:
        return _cached(comm, (5.5 if comm.rank else 2.5) * BLOCK_BYTES)

    assert run_ranks(Grid(z=2), cached, record=True) == [(0, 2)] * 2
