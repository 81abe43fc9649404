"""What ci/gpu looks at in messages between two ranks and in training that is split over them: each fault that it must
find is planted.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from real_ranks import start_server
from torch import Tensor
from waiting import LONG_S

from engine.comm.collective import Kind
from engine.errors import RunError
from engine.result.schema.gpu_check import Finding, Status
from gpu_check import messages, pair, rounding, splits, staged
from gpu_check.pair import Pair, found_by_all

CPU = torch.device("cpu")
COARSE = torch.float8_e5m2


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    """Ranks are forked from it."""
    start_server()


class Forgetful(staged.StagedChannel):
    """Sums over one rank only."""

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: Any, flight: Any) -> None:
        if kind is not Kind.ALL_REDUCE:
            super().carry_out(kind, source, target, root, flight)


class Turned(staged.StagedChannel):
    """Gathers the ranks' pieces in another order."""

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: Any, flight: Any) -> None:
        super().carry_out(kind, source, target, root, flight)
        if kind is Kind.ALL_GATHER and source.numel() > 1000:
            target.copy_(target.roll(source.numel()))


class Elsewhere(staged.StagedChannel):
    """Gives a rank the sum of the other one's shard."""

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: Any, flight: Any) -> None:
        turned = source.roll(target.numel()) if kind is Kind.REDUCE_SCATTER else source
        super().carry_out(kind, turned, target, root, flight)


class Coarse(staged.StagedChannel):
    """Sums numbers of fp32 and bf16 that have lost most of their digits."""

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: Any, flight: Any) -> None:
        if kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) and source.dtype != torch.float64:
            source.copy_(source.to(COARSE))
        super().carry_out(kind, source, target, root, flight)


class Exchanged(staged.StagedChannel):
    """Sends the last message first."""

    def carry_out_messages(self, ops: list[dist.P2POp]) -> None:
        sends = [op for op in ops if op.op is dist.isend]
        super().carry_out_messages([*reversed(sends), *(op for op in ops if op.op is dist.irecv)])


class Lost(staged.StagedChannel):
    """Sends no message."""

    def carry_out_messages(self, ops: list[dist.P2POp]) -> None:
        """Nothing."""


ALL, Z, DATA = splits.GRIDS, splits.GRIDS[2:3], splits.GRIDS[3:]
FAULTY = {Forgetful: ALL, Turned: Z, Elsewhere: Z, Coarse: DATA}
"""The grids on which training over a faulty channel is looked at."""
FP64, BF16, IN_FP32 = "", ", bf16", ", sums in fp32, bf16"


def _faulty(pair: Pair) -> Iterator[Finding]:
    """Findings over each channel, by its name. Then one rank dies, and the other waits."""
    less = replace(splits.CASE, model=replace(splits.CASE.model, layers=2), checkpoint_every=0)
    with patch.multiple(splits, STEPS=2, CASE=less), patch.object(rounding, "SEEDS", range(2)):
        for channel in (*FAULTY, Exchanged, Lost):
            with patch.object(staged, "StagedChannel", channel), patch.object(splits, "GRIDS", FAULTY.get(channel)):
                for finding in (splits.splits if channel in FAULTY else messages.messages)(pair):
                    yield finding.model_copy(update={"name": f"{channel.__name__}: {finding.name}"})
    dist.barrier()  # the first has told the last of it
    if dist.get_rank() == 1:
        os._exit(1)
    threading.Event().wait(3600)


@pytest.mark.slow
def test_what_is_lost_or_changes_places_or_digits_between_two_ranks_fails_and_a_rank_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair, "LIMIT_S", LONG_S)
    found: dict[str, Status] = {}
    with pytest.raises(RunError, match="A rank failed"):
        found.update((finding.name, finding.status) for finding in found_by_all(_faulty, CPU))
    wanted: dict[str, Status] = {
        f"{channel.__name__}: two ranks, {grid}{words}": "fail"
        for channel, grids in FAULTY.items()
        for grid in grids
        for words in (FP64, BF16, *([IN_FP32] if grid.batch_split > 1 else []))
    }
    wanted["Coarse: two ranks, 1x1x1x2"] = "pass"
    for channel in (Exchanged, Lost):
        wanted[f"{channel.__name__}: messages between two ranks"] = "fail"
        wanted[f"{channel.__name__}: messages both ways at once, each"] = "told"
    assert found == wanted


@pytest.mark.parametrize(
    "words", ["CUDA-capable device(s) is/are busy or unavailable", "all CUDA-capable devices are busy or unavailable"]
)
def test_a_card_that_takes_one_process_only_is_told_and_another_error_is_none_of_it(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def fails(said: str) -> None:
        def zeros(*sizes: int, device: torch.device) -> Tensor:
            raise RuntimeError(f"CUDA error: {said}")

        monkeypatch.setattr(torch, "zeros", zeros)

    here, there = multiprocessing.Pipe(duplex=False)
    fails(words)
    pair._rank(0, 2, there, "store", "cpu", False, messages.messages)
    found = here.recv()
    assert (found.status, found.sentence) == ("not run", pair.EXCLUSIVE)
    fails("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        pair.refused(CPU)
