"""A rank of ZeRO-3, or of DeepSpeed's stages, makes its own shard: the same weights, and no room for the others."""

import json
import os
import resource
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import LONG_S

from engine.batch import Batch
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.peers import memory
from engine.peers.comparison import Case
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS, ROOT, environment_lack, python_of

STACK_BYTES = 1 << 19
"""Of each thread, which a limit counts whole."""
TINY: dict[str, Any] = {"layers": 4, "hidden": 32, "heads": 4, "vocabulary": 66, "sequence": 16}
SIZES: dict[str, dict[str, Any]] = {"gpt": TINY, "llama": {**TINY, "kv_heads": 2, "ffn": 48}}


def ask(peer: str, layout: str, kind: str = "gpt", precision: str = "fp32", **more: Any) -> dict[str, Any]:
    """Return what deepspeed_ranks.py takes for a peer."""
    return {"peer": peer, "layout": layout, "kind": kind, "model": SIZES[kind], "precision": precision} | more


def built(*asked: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Build the ranks of each peer, or skip the test where its environment isn't there."""
    if reason := environment_lack("deepspeed"):
        pytest.skip(reason)
    done = subprocess.run(
        [python_of("deepspeed"), "-P", Path(__file__).with_name("deepspeed_ranks.py"), json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=5 * LONG_S,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # after what DeepSpeed writes while it is imported


def test_a_rank_has_the_engines_weights_to_the_last_bit() -> None:
    """Three ranks leave some padding. What is expected DeepSpeed itself gathers, or cuts from the whole network."""
    found = built(
        ask("deepspeed-zero3", "data=3", model=TINY | {"tied": True}, compares=True),
        ask("deepspeed-zero3", "data=2", "llama", "bf16", compares=True),
        ask("deepspeed-pipeline", "pipeline=2", compares=True),
        ask("deepspeed-3d", "tensor=2,pipeline=2", "llama", compares=True),
        ask("deepspeed-3d", "tensor=2,data=2", compares=True),
    )
    assert [[rank.get("unequal", rank) for rank in ranks] for ranks in found] == [
        [[]] * size for size in (3, 2, 2, 4, 4)
    ]


LARGE = {"layers": 32, "hidden": 512, "heads": 8, "vocabulary": 1024, "sequence": 64}
PARAMETERS = GPTConfig("large", **LARGE).parameters
SPARE_BYTES = 100 << 20
"""What a limit leaves for the stacks of threads, groups of ranks and Python's own objects."""


# Bytes of a parameter in fp32: weights and masters, and ZeRO-3's buffer of gradients.
@pytest.mark.parametrize(
    ("peer", "layout", "bytes_each"),
    [
        pytest.param("deepspeed-zero3", "data=6", 12, marks=pytest.mark.weekly),
        ("deepspeed-pipeline", "pipeline=4", 8),
        pytest.param("deepspeed-3d", "tensor=2,pipeline=2", 8, marks=pytest.mark.weekly),
    ],
)
def test_a_shard_fits_under_a_limit_that_a_whole_network_breaks(peer: str, layout: str, bytes_each: int) -> None:
    size = Layout.parse(layout).size
    shard = bytes_each * PARAMETERS / size
    allowed = int(1.1 * shard) + SPARE_BYTES
    assert allowed < 4 * PARAMETERS, "a whole network in fp32 would fit"
    parts, whole = built(
        *(ask(peer, layout, model=LARGE, allowed_bytes=allowed, whole=whole) for whole in (False, True))
    )
    assert [rank.get("shard_bytes", rank) for rank in parts] == pytest.approx([shard] * size, rel=0.05)
    assert any("can't allocate memory" in rank.get("error", "") for rank in whole), whole


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("peer", "layout", "precision", "bytes_each"),
    [
        ("deepspeed-zero3", "data=2", "fp32", 12),
        ("deepspeed-zero3", "data=2", "bf16", 8),
        ("deepspeed-pipeline", "pipeline=2,data=2", "fp32", 6),
        ("deepspeed-pipeline", "pipeline=2,data=2", "bf16", 4),
        ("deepspeed-3d", "tensor=2,pipeline=2", "fp32", 8),
        ("deepspeed-3d", "tensor=2,pipeline=2", "bf16", 6),
    ],
)
def test_building_takes_no_more_than_the_shard_and_a_tenth(
    peer: str, layout: str, precision: str, bytes_each: int
) -> None:
    """On shards of a gigabyte. With two data ranks ZeRO-1 has half the masters; ZeRO-3 sums gradients in the format of
    its weights.
    """
    parsed = Layout.parse(layout)
    cut = parsed.size if peer == "deepspeed-zero3" else parsed.tensor * parsed.pipeline
    model = LARGE | {"hidden": 1024, "layers": round(1.05e9 * cut / bytes_each / (12 * 1024**2))}
    shard = bytes_each * GPTConfig("huge", **model).parameters / cut
    (ranks,) = built(ask(peer, layout, precision=precision, model=model))
    assert [rank.get("shard_bytes", rank) for rank in ranks] == pytest.approx([shard] * parsed.size, rel=0.05)
    assert min(rank["shard_bytes"] for rank in ranks) > 1e9
    assert all(rank["grown_bytes"] <= 1.1 * rank["shard_bytes"] for rank in ranks), ranks


# Bytes of each of a rank's parameters. ZeRO-3 would hold 10 for 8, ZeRO-1 a clone of the half that it updates.
@pytest.mark.parametrize(
    ("peer", "layout", "precision", "spared"),
    [
        ("deepspeed-zero3", "data=2", "bf16", 2),
        pytest.param("deepspeed-zero3", "data=2", "fp16", 2, marks=pytest.mark.weekly),
        pytest.param("deepspeed-pipeline", "pipeline=2,data=2", "bf16", 1, marks=pytest.mark.weekly),
        pytest.param("deepspeed-pipeline", "pipeline=2,data=2", "fp16", 1, marks=pytest.mark.weekly),
    ],
)
def test_copies_that_a_start_in_half_the_width_is_spared_change_no_step(
    peer: str, layout: str, precision: str, spared: float
) -> None:
    model = LARGE | {"layers": 8}
    with_copies, without = built(
        *(ask(peer, layout, precision=precision, model=model, trains=2, copies=copies) for copies in (True, False))
    )
    assert [rank["steps"] for rank in without] == [rank["steps"] for rank in with_copies]
    parameters = GPTConfig("middle", **model).parameters / 2
    for more, less in zip(with_copies, without, strict=True):
        assert more["grown_bytes"] - less["grown_bytes"] > 0.75 * spared * parameters


def said_bytes(peer: str, layout: Layout, shape: GPTConfig, precision: str) -> float:
    """Return what the memory rule says of a rank, but for buckets, of which a processor touches what it fills."""
    contest = COMPARISONS[peer].with_layout(layout, Grid(data=layout.size))
    assert contest.memory is not None
    case = Case(shape, Batch(2 * layout.data * layout.pipeline), precision=precision)
    return memory.peer(replace(contest, memory=replace(contest.memory, bucket=0)), case, "cpu")


@pytest.mark.weekly
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("peer", "layout"),
    [
        ("deepspeed-zero2", "data=2"),
        ("deepspeed-zero3", "data=2"),
        ("deepspeed-pipeline", "pipeline=2,data=2,micro_batches=2"),
    ],
)
def test_more_layers_take_about_what_the_memory_rule_says(peer: str, layout: str, precision: str) -> None:
    """Return the difference of two networks, which is free of what Python and the libraries take."""
    parsed = Layout.parse(layout)
    models = [LARGE | {"layers": layers} for layers in (4, 16)]
    found = built(*(ask(peer, layout, precision=precision, model=model, trains=3) for model in models))
    few, many = (max(rank["trained_bytes"] for rank in ranks) for ranks in found)
    said_of_few, said_of_many = (said_bytes(peer, parsed, GPTConfig("asked", **model), precision) for model in models)
    assert said_of_many - said_of_few == pytest.approx(many - few, rel=0.25)
