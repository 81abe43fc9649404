"""The table of what peers are set to for speed. Installed libraries are asked in test_libraries.py."""

from dataclasses import replace
from typing import Any

import pytest
from real_ranks import run_processes

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.peers import settings
from engine.peers.alternate import on_grid
from engine.peers.comparison import Case
from engine.peers.registry import COMPARISONS, OPTIONS
from engine.peers.settings import chosen, recorded

CASE = Case(GPTConfig("tiny", layers=2, hidden=32, heads=4, vocabulary=64, sequence=16), Batch(4))


def test_every_setting_has_a_source() -> None:
    assert all(
        option.source for sections in OPTIONS.values() for options in sections.values() for option in options.values()
    )


def test_every_peer_but_those_without_any_tells_its_settings() -> None:
    without = {name for name in COMPARISONS if not recorded(name)}
    assert without == {
        "plain",
        "channels-last",
        "tensor-parallel",
        "tensor-parallel-sp",
        *(one for one in COMPARISONS if one.startswith("pipeline-")),
    }
    assert set(OPTIONS) == {
        next(key for key in sorted(OPTIONS, key=len, reverse=True) if name == key or name.startswith(f"{key}-"))
        for name in set(COMPARISONS) - without
    }
    first = recorded("deepspeed-zero3")[0]
    assert (first.name, first.cpu, first.cuda, first.needs) == ("zero_optimization: overlap_comm", "on", "on", None)
    assert recorded("transformers-tp") == recorded("transformers")


def test_what_a_gpu_has_no_kernel_for_is_as_on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(device: str, *, installed: bool) -> object:
        return chosen("megatron-core", "layers", device, lambda module: installed)["TEDotProductAttention"]

    assert [attention("cuda", installed=there) for there in (False, True)] == [False, True]
    assert attention("cpu", installed=True) is False
    monkeypatch.setattr(settings, "find_spec", lambda module: None)
    lacking = settings.without("megatron-core", "cuda")
    assert lacking["transformer_engine"] == "apply_rope_fusion, TEDotProductAttention"
    assert settings.without("megatron-core", "cpu") == settings.without("deepspeed", "cuda") == {}


def test_what_a_library_reads_from_its_environment_is_there_on_the_device_that_needs_it() -> None:
    assert settings.environ("megatron-core", "cuda") == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert (
        settings.environ("megatron-core", "cpu")
        == settings.environ("litgpt", "cuda")
        == settings.environ(None, "cuda")
        == {}
    )


def built(comm: Comm) -> dict[str, Any]:
    """Of peers that run here, what they were built with."""
    peers = {name: COMPARISONS[name].implementation()(CASE, comm) for name in ("ddp", "fsdp2", "fsdp2-reshard")}
    parallel = peers["ddp"]._parallel
    found: dict[str, Any] = {
        "ddp": {name: getattr(parallel, name) for name in ("gradient_as_bucket_view", "static_graph")}
    }
    for name in ("fsdp2", "fsdp2-reshard"):
        group = peers[name]._model.blocks[0]._get_fsdp_state()._fsdp_param_group
        found[name] = group._reshard_after_forward
    resharded = COMPARISONS["hsdp"].implementation()(
        replace(CASE, checkpoint_every=1), on_grid(Grid(z=2), CASE, comm.device)
    )
    kept = COMPARISONS["hsdp"].implementation()(CASE, on_grid(Grid(z=2), CASE, comm.device))
    for name, peer in (("hsdp", kept), ("hsdp, recomputing", resharded)):
        found[name] = peer._model.blocks[0]._get_fsdp_state()._fsdp_param_group._reshard_after_forward
    return found


def test_pytorchs_own_are_built_with_what_the_table_says() -> None:
    for found in run_processes(Grid(data=2), built):
        said = chosen("ddp", "DistributedDataParallel", "cpu")
        assert found["ddp"].items() <= said.items()
        for name in ("fsdp2", "fsdp2-reshard"):
            assert found[name] is chosen(name, "fully_shard", "cpu")["reshard_after_forward"]
        assert (found["hsdp"], found["hsdp, recomputing"]) == (False, True), "as memory.peer has it"
