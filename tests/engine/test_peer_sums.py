"""Sums of gradients in fp32 beside a computation in bf16 on both sides of a contest, and batches known to fit."""

from dataclasses import replace

import pytest
import torch

from engine.batch import Batch
from engine.grid import Axis, Grid
from engine.models.gpt.config import GPTConfig
from engine.peers import memory
from engine.peers.comparison import Case, PeerTraining, Unavailable
from engine.peers.known.fsdp2 import policy
from engine.peers.memory import Room, choose_apart
from engine.peers.registry import COMPARISONS, OWN_COMPARISON

NETWORK = GPTConfig("tiny", layers=4, hidden=64, heads=2, vocabulary=128, sequence=16)
IN_BF16 = Case.of(PeerTraining(precision="bf16"), NETWORK, Batch(16, 2), peer_micro_batch=2)
IN_FP32 = Case.of(PeerTraining(precision="bf16", reduce_dtype="fp32"), NETWORK, Batch(16, 2), peer_micro_batch=2)
WIDENING = {"fsdp2", "fsdp2-reshard", "hsdp", "torchtitan", "torchtitan-sp"}
"""Peers whose libraries take a format of sums, or sum in fp32 always."""


def test_both_sides_sum_in_the_format_that_is_asked_for() -> None:
    grid = Grid(z=2, data=2)
    for case, bytes_, dtype, name in ((IN_BF16, 2, torch.bfloat16, "bf16"), (IN_FP32, 4, torch.float32, "fp32")):
        assert {case.reduce(grid, axis) for axis in (Axis.Z, Axis.DATA)} == {bytes_} == {case.bytes_of_sums}
        assert (policy(case).param_dtype, policy(case).reduce_dtype) == (torch.bfloat16, dtype)
        assert case.sums == {"reduce_dtype": name}
    assert policy(replace(IN_FP32, precision="fp32")).reduce_dtype is None


def test_a_peer_that_can_not_sum_in_fp32_is_no_match_for_it() -> None:
    able = {name for name, peer in COMPARISONS.items() if not peer.lacking(NETWORK, recompute=0, widens=True)}
    assert able | WIDENING == able | {"torchtitan", "torchtitan-sp"}, "which train no such network"
    assert {name for name, peer in COMPARISONS.items() if peer.sums_in_fp32} == WIDENING
    assert OWN_COMPARISON.lacking(NETWORK, recompute=0, widens=True) is None
    assert "--reduce-dtype" in str(COMPARISONS["ddp"].lacking(NETWORK, recompute=0, widens=IN_FP32.widens))
    in_fp32_throughout = replace(IN_FP32, precision="fp32")
    assert (IN_BF16.widens, IN_FP32.widens, in_fp32_throughout.widens) == (False, True, False)


def test_wider_sums_take_more_memory_where_they_wait_for_the_last_micro_batch() -> None:
    fsdp2 = COMPARISONS["fsdp2"].with_grid(Grid(z=4))
    more = memory.peer(fsdp2, IN_FP32, "cuda") - memory.peer(fsdp2, IN_BF16, "cuda")
    assert more == 2 * NETWORK.parameters


def test_a_contest_that_does_not_fit_by_the_estimate_is_run_where_its_batch_is_known_to_fit() -> None:
    contest = COMPARISONS["fsdp2"].with_grid(Grid(z=2))
    tight = Room("cuda", 1e5)
    with pytest.raises(Unavailable, match=r"[\d.]+ of [\d.e-]+ GB"):
        choose_apart(contest, IN_FP32, tight)
    assert choose_apart(contest, replace(IN_FP32, despite_estimate=True), tight).apart is True
