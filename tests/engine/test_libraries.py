"""Libraries with environments of their own train what the engine trains, in each way that they split a network.

Those that aren't weekly are what ci/test runs: every way of Megatron-core and of DeepSpeed on two ranks, each with a
GPT or a Llama. `ci/nightly --weekly` runs all.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from guest_cases import CASE, GPT, LLAMA, hold
from real_ranks import run_processes

from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers import environments
from engine.peers.contest import CONTESTS
from engine.peers.layout import Layout
from engine.result.peers import Measured

AT_EACH_CHANGE = {
    ("megatron-core", "tensor=2", GPT),
    ("megatron-core", "pipeline=2,micro_batches=4", LLAMA),
    ("megatron-core", "data=2", GPT),
    ("megatron-core-sp", "tensor=2", LLAMA),
    ("deepspeed-zero1", "data=2", GPT),
    ("deepspeed-zero2", "data=2", LLAMA),
    ("deepspeed-zero3", "data=2", GPT),
    ("deepspeed-pipeline", "pipeline=2", LLAMA),
    ("deepspeed-3d", "tensor=2", GPT),
}
LAYOUTS = {
    "megatron-core": ("tensor=2", "pipeline=2,micro_batches=4", "data=2"),
    "megatron-core-sp": ("tensor=2", "tensor=2,pipeline=2,micro_batches=2"),
    "deepspeed-zero1": ("data=2",),
    "deepspeed-zero2": ("data=2",),
    "deepspeed-zero3": ("data=2",),
    "deepspeed-pipeline": ("pipeline=2",),
    "deepspeed-3d": ("tensor=2", "tensor=2,pipeline=2,micro_batches=2"),
    "torchtitan": ("tensor=2", "pipeline=2,micro_batches=4", "data=2"),
    "torchtitan-sp": ("tensor=2",),
    "colossalai": ("tensor=2", "pipeline=2,micro_batches=4", "data=2"),
    "axonn": ("tensor=2", "data=2"),
    "axonn-depth": ("data=2",),
    "litgpt": ("data=1", "data=2"),
}
NO_GPT = {"torchtitan": "torchtitan has no GPT with learnt positions: compare a Llama."}
"""By library."""


def contests() -> Iterator[Any]:
    """Every layout with either network."""
    for name, layouts in LAYOUTS.items():
        for layout in layouts:
            for model in (GPT, LLAMA):
                marks = () if (name, layout, model) in AT_EACH_CHANGE else (pytest.mark.weekly,)
                kind = "gpt" if model is GPT else "llama"
                yield pytest.param(name, layout, model, marks=marks, id=f"{name}-{layout}-{kind}")


@pytest.mark.parametrize(("name", "layout", "model"), list(contests()))
def test_a_library_trains_what_the_engine_trains(name: str, layout: str, model: GPTConfig | LlamaConfig) -> None:
    grid = Grid(data=Layout.parse(layout).size)
    contest = CONTESTS[name].laid_out(Layout.parse(layout), grid)
    assert contest.library is not None
    if reason := environments.lacking(contest.library):
        pytest.skip(reason)
    for found in run_processes(grid, hold, contest, replace(CASE, model=model)):
        if model is GPT and (lacks := NO_GPT.get(contest.library)):
            assert found == f"Unavailable: {lacks}"
            continue
        assert isinstance(found, Measured), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-5)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-5)
        assert set(found.peer.versions) == {"torch", contest.library}
        assert found.ours.versions == {}
        assert not any(math.isnan(loss) for loss in found.peer.losses)
