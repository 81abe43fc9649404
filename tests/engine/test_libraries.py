"""Libraries with environments of their own train what the engine trains, in each way that they split a network, in
micro-batches too, and take the settings that the table has for them.

ci/test runs a few on two ranks where `ci/peers` has made the environment: of Megatron-core and of DeepSpeed a pipeline,
and a grid that sums gradients of micro-batches. `ci/weekly` makes all environments and runs all.
"""

import math
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from external_cases import CASE, GPT, LLAMA, hold
from real_ranks import run_processes
from test_micro_batches import CASE as IN_PARTS
from test_micro_batches import check
from waiting import LONG_S

from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS, OPTIONS, choose_settings, environment_lack, python_of
from engine.result.schema.peers import PeerContest

AT_EACH_CHANGE = {("megatron-core", "pipeline=2,micro_batches=4", LLAMA), ("deepspeed-pipeline", "pipeline=2", LLAMA)}
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
IN_MICRO_BATCHES = {
    ("deepspeed-zero1", "data=2"): GPT,
    ("deepspeed-zero2", "data=2"): GPT,
    ("deepspeed-zero3", "data=2"): GPT,
    ("megatron-core", "data=2"): GPT,
    ("megatron-core", "tensor=2"): GPT,
    ("torchtitan", "data=2"): LLAMA,
    ("torchtitan", "tensor=2"): LLAMA,
    ("colossalai", "data=2"): GPT,
    ("colossalai", "tensor=2"): GPT,
    ("axonn", "data=2"): GPT,
    ("axonn-depth", "data=2"): GPT,
    ("litgpt", "data=2"): GPT,
}
IN_MICRO_BATCHES_AT_EACH_CHANGE = (("deepspeed-zero3", "data=2"), ("megatron-core", "tensor=2"))
BUILDS = {
    "megatron-core": "from megatron.core.transformer.transformer_config import TransformerConfig\n"
    "from megatron.core.distributed import DistributedDataParallelConfig\n"
    "from megatron.core.optimizer import OptimizerConfig\n"
    "from functools import partial\n"
    "need = dict(num_layers=2, hidden_size=8, num_attention_heads=2)\n"
    "known = {'TransformerConfig': partial(TransformerConfig, **need), 'layers': dict, 'environ': dict,\n"
    " 'DistributedDataParallelConfig': DistributedDataParallelConfig, 'OptimizerConfig': OptimizerConfig}\n",
    "deepspeed": "from deepspeed.runtime.zero.config import DeepSpeedZeroConfig as Z\n"
    "known = {'zero_optimization': Z}\n",
    "torchtitan": "from torchtitan.config import CompileConfig\nknown = {'CompileConfig': CompileConfig}\n",
    "litgpt": "from lightning.fabric.strategies import DDPStrategy\nknown = {'DDPStrategy': DDPStrategy}\n",
    "colossalai": "from inspect import signature\n"
    "from colossalai.booster.plugin import HybridParallelPlugin as H\n"
    "known = {'HybridParallelPlugin': signature(H).bind_partial}\n",
    "axonn": "from inspect import signature\n"
    "from axonn.intra_layer import Linear, optimize_communication\n"
    "known = {'optimize_communication': signature(optimize_communication).bind_partial,\n"
    " 'Linear': signature(Linear.forward).bind_partial}\n",
}
"""What takes each section, in the library's own Python."""
SETTINGS_AT_EACH_CHANGE = ("megatron-core", "deepspeed")


def contests() -> Iterator[Any]:
    """Every layout with either network."""
    for name, layouts in LAYOUTS.items():
        for layout in layouts:
            for model in (GPT, LLAMA):
                if COMPARISONS[name].lacking(model, recompute=False):
                    continue
                marks = () if (name, layout, model) in AT_EACH_CHANGE else (pytest.mark.weekly,)
                kind = "gpt" if model is GPT else "llama"
                yield pytest.param(name, layout, model, marks=marks, id=f"{name}-{layout}-{kind}")


@pytest.mark.parametrize(("name", "layout", "model"), list(contests()))
def test_a_library_trains_what_the_engine_trains(name: str, layout: str, model: GPTConfig | LlamaConfig) -> None:
    grid = Grid(data=Layout.parse(layout).size)
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), grid)
    assert contest.library is not None
    if reason := environment_lack(contest.library):
        pytest.skip(reason)
    for found in run_processes(grid, hold, contest, replace(CASE, model=model)):
        assert isinstance(found, PeerContest), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-5)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-5)
        assert set(found.peer.versions) == {"torch", contest.library}
        assert found.ours.versions == {}
        assert not any(math.isnan(loss) for loss in found.peer.losses)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(*one, marks=() if one in IN_MICRO_BATCHES_AT_EACH_CHANGE else (pytest.mark.weekly,))
        for one in IN_MICRO_BATCHES
    ],
)
def test_a_library_adds_up_the_gradients_of_its_micro_batches(name: str, layout: str) -> None:
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), Grid(data=2))
    assert contest.library is not None
    if reason := environment_lack(contest.library):
        pytest.skip(reason)
    check(contest, replace(IN_PARTS, model=IN_MICRO_BATCHES[name, layout]), 1e-5)


@pytest.mark.parametrize(
    "library",
    [pytest.param(one, marks=() if one in SETTINGS_AT_EACH_CHANGE else (pytest.mark.weekly,)) for one in BUILDS],
)
def test_the_installed_library_takes_each_setting(library: str) -> None:
    """Also those of GPUs, which nothing else here builds."""
    if reason := environment_lack(library):
        pytest.skip(reason)
    script = BUILDS[library]
    for device in ("cpu", "cuda"):
        given = {section: choose_settings(library, section, device) for section in OPTIONS[library]}
        script += f"for name, own in {given!r}.items(): known[name](**own)\n"
    done = subprocess.run(
        [python_of(library), "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
