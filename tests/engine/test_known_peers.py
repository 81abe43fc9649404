"""What is known of peers: their files, their settings, and what they need of a device by PyTorch's allocator."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from external_cases import fork_externals, skip_with_older_torch
from forked_python import forked_python
from real_ranks import run_processes
from waiting import LONG_S

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.peers import memory, registry
from engine.peers.alternate import measure
from engine.peers.comparison import Case, Comparison, Habits
from engine.peers.layout import Layout
from engine.peers.ours import connect
from engine.peers.registry import COMPARISONS, OPTIONS, choose_environ, choose_settings, read_known, record_settings
from engine.result.schema.peers import PeerContest

WIDE = GPTConfig("wide", layers=4, hidden=256, heads=4, vocabulary=1024, sequence=64)
DEEP = GPTConfig("deep", layers=8, hidden=64, heads=4, vocabulary=256, sequence=128)
SMALL = Case(GPTConfig("tiny", layers=2, hidden=32, heads=4, vocabulary=64, sequence=16), Batch(4))
LARGE = Case(lookup("gpt-5b"), Batch(64), precision="bf16", checkpoint_every=1)
CASE = Case(WIDE, Batch(8), warmup=3, rounds=1, steps=1, timeout_s=LONG_S, meeting_timeout_s=LONG_S)
CASES = {
    "weights": CASE,
    "activations": replace(CASE, model=DEEP, batch=Batch(16)),
    "micro-batches": replace(CASE, model=DEEP, batch=Batch(8), peer_micro_batch=2),
    "recomputed": replace(CASE, model=DEEP, batch=Batch(16), checkpoint_every=1),
    "images": replace(CASE, model=lookup("unet-tiny"), batch=Batch(32), checkpoint_every=1),
}
WITHIN = 0.25
RANKS = memory._Ranks(1, 1, 64, 1, 1)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"memory": None}, "memory of the peer odd"),
        ({"memory": {"data": "most"}}, "data is one of"),
        ({"memory": {}, "colour": 1}, "colour"),
        ({"memory": {}, "splits": ["rows"]}, "rows"),
    ],
)
def test_a_file_that_describes_no_peer_is_refused_by_name(wrong: dict[str, Any], named: str, tmp_path: Path) -> None:
    peer = {"peer": "odd", "grid": {}, "built_by": "a:B"} | wrong
    if peer["memory"] is None:
        del peer["memory"]
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump({"peers": {"odd": peer}, "settings": {}}))
    with pytest.raises(UsageError, match=rf"odd\.yaml .*{named}"):
        read_known(path)


def test_every_peer_but_those_without_any_tells_its_settings() -> None:
    without = {name for name in COMPARISONS if not record_settings(name)}
    pipelines = {name for name in COMPARISONS if name.startswith("pipeline-")}
    assert without == {"plain", "channels-last", "tensor-parallel", "tensor-parallel-sp"} | pipelines
    assert set(OPTIONS) == {
        next(key for key in sorted(OPTIONS, key=len, reverse=True) if name == key or name.startswith(f"{key}-"))
        for name in set(COMPARISONS) - without
    }
    first = record_settings("deepspeed-zero3")[0]
    assert (first.name, first.cpu, first.cuda, first.needs) == ("zero_optimization: overlap_comm", "on", "on", None)
    assert record_settings("transformers-tp") == record_settings("transformers")


def test_what_a_gpu_has_no_kernel_for_is_as_on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(device: str, *, installed: bool) -> object:
        return choose_settings("megatron-core", "layers", device, lambda module: installed)["TEDotProductAttention"]

    assert [attention("cuda", installed=there) for there in (False, True)] == [False, True]
    assert attention("cpu", installed=True) is False
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    missing = registry.missing_modules
    assert missing("megatron-core", "cuda")["transformer_engine"] == "apply_rope_fusion, TEDotProductAttention"
    assert missing("megatron-core", "cpu") == missing("deepspeed", "cuda") == {}


def test_what_a_library_reads_from_its_environment_is_there_on_the_device_that_needs_it() -> None:
    assert choose_environ("megatron-core", "cuda") == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert choose_environ("megatron-core", "cpu") == choose_environ("litgpt", "cuda") == {}
    assert choose_environ(None, "cuda") == {}


def built(comm: Comm) -> dict[str, Any]:
    """Options that peers here were built with."""
    peers = {name: COMPARISONS[name].implementation()(SMALL, comm) for name in ("ddp", "fsdp2", "fsdp2-reshard")}
    found: dict[str, Any] = {
        "ddp": {name: getattr(peers["ddp"]._parallel, name) for name in ("gradient_as_bucket_view", "static_graph")}
    }
    del peers["ddp"]
    hsdp = COMPARISONS["hsdp"].implementation()
    peers["hsdp"] = hsdp(SMALL, connect(Grid(z=2), SMALL, comm.device))
    peers["hsdp, recomputing"] = hsdp(replace(SMALL, checkpoint_every=1), connect(Grid(z=2), SMALL, comm.device))
    for name, peer in peers.items():
        found[name] = peer._model.blocks[0]._get_fsdp_state()._fsdp_param_group._reshard_after_forward
    return found


def test_pytorchs_own_are_built_with_what_the_table_says() -> None:
    for found in run_processes(Grid(data=2), built):
        assert found["ddp"].items() <= choose_settings("ddp", "DistributedDataParallel", "cpu").items()
        for name in ("fsdp2", "fsdp2-reshard"):
            assert found[name] is choose_settings(name, "fully_shard", "cpu")["reshard_after_forward"]
        assert (found["hsdp"], found["hsdp, recomputing"]) == (False, True), "as memory.peer has it"


def took(comm: Comm, contest: Comparison, cases: Sequence[str], python: Path) -> dict[str, PeerContest]:
    fork_externals(python)
    launch = Launch(comm.rank, comm.grid.size, comm.rank, "test", "127.0.0.1", 0)
    return {what: measure(comm, contest, CASES[what], ("peer",), launch) for what in cases}


@pytest.mark.parametrize(
    ("name", "layout", "cases"),
    [
        ("plain", None, [*CASES]),
        pytest.param("ddp", None, ["weights", "micro-batches"], marks=pytest.mark.weekly),
        ("fsdp2", None, ["weights", "micro-batches", "recomputed"]),
        pytest.param("fsdp2-reshard", None, ["weights", "micro-batches"], marks=pytest.mark.weekly),
        pytest.param("hsdp", None, ["micro-batches", "recomputed"], marks=pytest.mark.weekly),
        pytest.param("tensor-parallel", None, ["weights", "micro-batches"], marks=pytest.mark.weekly),
        pytest.param("tensor-parallel-sp", None, ["activations", "micro-batches"], marks=pytest.mark.weekly),
        pytest.param("pipeline-gpipe", "pipeline=2", ["micro-batches", "recomputed"], marks=pytest.mark.weekly),
        ("pipeline-1f1b", "pipeline=2", ["weights", "micro-batches", "recomputed"]),
    ],
)
def test_a_peer_takes_about_what_is_said(name: str, layout: str | None, cases: list[str]) -> None:
    contest = COMPARISONS[name]
    contest = contest.with_layout(Layout.parse(layout), contest.grid) if layout else contest
    skip_with_older_torch(contest)
    by_rank = run_processes(contest.grid, took, contest, cases, forked_python())
    for what in cases:
        most = max(one[what].peer.peak_bytes or 0 for one in by_rank)
        said = memory.peer(contest, CASES[what], "cpu")
        assert said == pytest.approx(most, rel=WITHIN), f"{what}: {said / most:.2f} of {most}"


def training_bytes(name: str, case: Case = LARGE, **habits: Any) -> float:
    """Bytes of a parameter on 64 data ranks."""
    known = COMPARISONS[name].memory
    assert known is not None
    return memory._training_bytes(replace(known, **habits), RANKS, case) / case.model.parameters


def test_what_is_divided_among_ranks_is_what_their_papers_say() -> None:
    """Rajbhandari et al. 2020, Fig. 1: of 7.5 billion parameters 120, 31.4, 16.6 and 1.9 GB on 64 ranks; 16 bytes each.
    fully_shard holds no copy of its shares.
    """
    states = {"bucket": 0, "flattens_at_most": 0.0}
    nothing, one, two, three = (training_bytes("deepspeed-zero1", data=data, **states) for data in memory.DIVIDED)
    assert nothing - one == pytest.approx(12 * 63 / 64)
    assert one - two == pytest.approx(2 * 63 / 64)
    assert three < two
    assert training_bytes("fsdp2-reshard", copies=True) - training_bytes("fsdp2-reshard") == pytest.approx(2 / 64)


def test_deepspeeds_buffers_and_copies_are_those_of_its_source() -> None:
    """Buckets of 500 million elements; its optimizers flatten gradients, which they then have in fp32, too."""
    bucket = 5e8 / LARGE.model.parameters
    for name, buckets in (("deepspeed-zero1", 3), ("deepspeed-zero2", 3), ("deepspeed-zero3", 2)):
        assert training_bytes(name) - training_bytes(name, bucket=0) == pytest.approx(buckets * bucket * 2)
    few = replace(LARGE, batch=Batch(1))  # so that nothing but the optimizer's step is full
    whole = {"data": "nothing", "bucket": 0}
    assert training_bytes("deepspeed-zero1", few, **whole) == pytest.approx(16 + 6)
    fp32 = replace(few, precision="fp32")
    assert training_bytes("deepspeed-zero1", fp32, **whole) == pytest.approx(4 + 4 + 4 + 8 + 4, rel=0.02), "a copy"
    limited = training_bytes("deepspeed-zero1", few, **whole, flattens_at_most=few.model.parameters / 2)
    assert limited == pytest.approx(16 + 3)


def test_par4ds_zero3_of_80b_on_64_gpus_fits_an_a100_but_for_what_a_plan_leaves_free() -> None:
    """par4d Fig. 9 has it, with 40 GB; its micro-batch isn't printed."""
    case = Case(lookup("gpt-80b"), Batch(2048), precision="bf16", checkpoint_every=1, peer_micro_batch=1)
    needed = memory.peer(COMPARISONS["deepspeed-zero3"].with_layout(Layout(data=64), Grid(data=64)), case, "cuda")
    assert needed == pytest.approx(29.6e9, rel=0.01)
    assert memory.usable(40e9) < needed < 40e9


def test_a_schedule_of_all_forwards_keeps_all_micro_batches_and_the_other_one_a_stage() -> None:
    def needs(name: str, parts: int) -> float:
        contest = COMPARISONS[name].with_layout(Layout(pipeline=2, micro_batches=parts), Grid(z=2))
        return memory.peer(contest, Case(DEEP, Batch(64)), "cpu")

    assert needs("pipeline-gpipe", 16) > 1.5 * needs("pipeline-1f1b", 16)
    assert needs("pipeline-gpipe", 2) == needs("pipeline-1f1b", 2)


def test_memory_follows_from_what_settings_switch_on() -> None:
    """One kernel of attention keeps no scores, and Megatron-core divides its optimizer."""
    case = Case(lookup("gpt-5b"), Batch(8))
    contest = COMPARISONS["colossalai"].with_layout(Layout(tensor=2), Grid(x=2))
    scores = 8 * case.model.sequence**2 * case.model.heads / 2 * 3 * 4 * case.model.layers
    assert memory.peer(contest, case, "cpu") - memory.peer(contest, case, "cuda") == pytest.approx(scores)
    contest = COMPARISONS["megatron-core"].with_layout(Layout(tensor=2, data=8), Grid(data=16))
    assert memory.peer(contest, LARGE, "cuda") < 0.6 * memory.peer(contest, LARGE, "cpu")


def test_a_head_that_reads_one_token_makes_logits_of_it_alone() -> None:
    vit, ranks = lookup("vit-test"), memory._Ranks(1, 1, 1, 8, 1)
    few, more = (
        memory._activation_bytes(Habits(vocabulary=False), ranks, Case(replace(vit, classes=classes), Batch(8)))  # type: ignore[type-var]
        for classes in (1000, 2000)
    )
    assert more - few == pytest.approx(8 * 1000 * 3 * 4)


def test_what_does_not_fit_is_told_with_its_numbers() -> None:
    room = memory.Room("cuda", 40e9, 256e9)
    assert "88 of 28 GB" in str(room.lack("the engine", 88e9))
    assert room.lack("ddp", 20e9) is None
    assert [room.fits(needed) for needed in (40e9, 20e9)] == [False, True]
    assert memory.Room("cuda").fits(108e9)
    assert "200 of 179 GB" in str(room.lack("megatron-core", 20e9, 200e9))
