"""The peers train what the engine trains, and are timed in the same run."""

import math
import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from real_ranks import run_processes
from test_task import MODEL as MASKED
from torch import Tensor
from torch.futures import Future

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.grid import Grid
from engine.layers import matmul
from engine.layers.matmul import Kernels, Mode
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.unet.config import UNetConfig
from engine.peers import alternate
from engine.peers.alternate import measure, peer_side
from engine.peers.compare import check_comparisons
from engine.peers.comparison import Case, Comparison
from engine.peers.known import ddp
from engine.peers.known.plain import Plain
from engine.peers.known.tensor_parallel import regroup_parts
from engine.peers.layout import Layout
from engine.peers.ours import Ours
from engine.peers.peer import StepMetrics, serial_model
from engine.peers.registry import COMPARISONS, OWN_COMPARISON
from engine.result.schema.peers import PeerContest
from engine.training.equality import TOLERANCES, check_equal
from engine.training_record import OptimConfig, PrecisionName

MODEL = GPTConfig("tiny", layers=2, hidden=32, heads=4, vocabulary=64, sequence=16)
CASE = Case(MODEL, Batch(4), optim=OptimConfig(learning_rate=1e-2), warmup=3, rounds=1, steps=1)
DENOISING = UNetConfig("tiny", base=64, multipliers=(1, 2), depth=1, attention=(4,), image=8).without_zeros()
LLAMA = LlamaConfig("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=64, sequence=16)

ALWAYS_HERE = [
    name
    for name, one in COMPARISONS.items()
    if name not in ("compile", "transformers") and not one.splits and one.supports(MODEL)
]
"""The others take a compiler, a package, an environment or images: test_single_device.py, test_libraries.py."""
WEEKLY = ("fsdp2-reshard", "tensor-parallel")
"""Each is another one but for a setting, and that one is trained at each change."""
IN_ALL_FORMATS = [pytest.param(name, marks=[pytest.mark.weekly] if name in WEEKLY else []) for name in ALWAYS_HERE]

# Steps small enough that AdamW doesn't make bf16's roundings large.
RATES: dict[PrecisionName, float] = {"fp64": 1e-2, "fp32": 1e-2, "bf16": 1e-3}
SEEN = {"fp64": 1e-14, "fp32": 1e-5, "bf16": TOLERANCES["bf16"].losses}


class Formats(NamedTuple):
    """Formats of a peer in bf16: weights stepped, their gradients, products, what its blocks hand on."""

    stepped: str
    gradients: str
    products: str
    stream: str


def formats(comm: Comm, name: str, *, autocast: bool) -> Formats:
    case = replace(CASE, precision="bf16", autocast=autocast)
    peer = COMPARISONS[name].implementation()(case, comm)
    seen: list[torch.dtype] = []
    for layer in (peer._model.blocks[0].attention.qkv, peer._model.blocks[0]):
        layer.register_forward_hook(lambda *call: seen.append(call[2].dtype))
    peer_side(CASE, comm, peer)()
    stepped = [parameter for group in peer._optimizer.param_groups for parameter in group["params"]]
    (parameter,) = {str(p.dtype) for p in stepped}
    (gradient,) = {str(p.grad.dtype) for p in stepped}
    return Formats(parameter, gradient, *(str(dtype) for dtype in seen))


def train_each(comm: Comm, name: str) -> tuple[dict[tuple[str, str], PeerContest], tuple[Formats, Formats]]:
    """Every case with one peer, and its formats in bf16: processes take longer to start than to train."""
    measured = {
        (model.family, precision): measure(
            comm,
            COMPARISONS[name],
            replace(CASE, model=model, precision=precision, optim=OptimConfig(learning_rate=rate)),
        )
        for model in (MODEL, LLAMA)
        for precision, rate in RATES.items()
    }
    by_autocast = replace(CASE, precision="bf16", autocast=True, optim=OptimConfig(learning_rate=RATES["bf16"]))
    measured[MODEL.family, "autocast"] = measure(comm, COMPARISONS[name], by_autocast)
    return measured, (formats(comm, name, autocast=False), formats(comm, name, autocast=True))


@cache
def trained(name: str) -> list[tuple[dict[tuple[str, str], PeerContest], tuple[Formats, Formats]]]:
    """By rank."""
    return run_processes(COMPARISONS[name].grid, train_each, name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", RATES)
@pytest.mark.parametrize("family", [MODEL.family, LLAMA.family])
@pytest.mark.parametrize("name", IN_ALL_FORMATS)
def test_a_peer_has_the_engines_losses_over_three_steps(name: str, family: str, precision: PrecisionName) -> None:
    for found, _ in trained(name):
        ours, peer = found[family, precision].ours, found[family, precision].peer
        assert len(ours.losses) == len(ours.gradient_norms) == 3
        assert ours.losses == pytest.approx(peer.losses, rel=SEEN[precision])
        assert ours.gradient_norms == pytest.approx(peer.gradient_norms, rel=SEEN[precision])
        assert len(set(ours.losses)) == 3
        assert [len(times) for times in ours.rounds_s] == [len(times) for times in peer.rounds_s] == [1]


@pytest.mark.parametrize("name", IN_ALL_FORMATS)
def test_by_autocast_a_peer_has_the_engines_losses_too(name: str) -> None:
    for found, _ in trained(name):
        both = found[MODEL.family, "autocast"]
        assert both.ours.losses == pytest.approx(both.peer.losses, rel=TOLERANCES["bf16"].losses)
        assert both.ours.gradient_norms == pytest.approx(both.peer.gradient_norms, rel=TOLERANCES["bf16"].norms)


@pytest.mark.parametrize("name", IN_ALL_FORMATS)
def test_a_peer_computes_in_bf16_over_fp32_masters_as_the_engine_does(name: str) -> None:
    """A peer's residual stream is bf16, too, but by autocast, which FSDP2 has no use for."""
    narrow, wide = "torch.bfloat16", "torch.float32"
    for _, (pure, autocast) in trained(name):
        assert pure == (wide, wide, narrow, narrow)
        assert autocast == (wide, wide, narrow, narrow if "sd" in name else wide)


def test_what_a_peer_has_nothing_like_is_named() -> None:
    gpt, llama = lookup("gpt-test"), lookup("llama-test")
    vit: Any = SimpleNamespace(family="vit")
    interleaved = COMPARISONS["pipeline-interleaved"].with_layout(Layout(pipeline=2), Grid(z=2))

    def lacking(comparison: Comparison | str, model: Any, recompute: int = 0) -> str | None:
        known = COMPARISONS[comparison] if isinstance(comparison, str) else comparison
        return known.lacking(model, recompute=recompute)

    for able in (("torchtitan", llama, 1), ("ddp", vit), ("litgpt", gpt), ("ddp", gpt, 2)):
        assert lacking(*able) is None
    assert "compare a llama." in str(lacking("torchtitan", gpt))
    assert "gpt or a llama" in str(lacking("litgpt", vit))
    assert "--checkpoint-activations" in str(lacking("litgpt", gpt, 1))
    assert "--checkpoint-every 1" in str(lacking("fsdp2", gpt, 2))
    assert lacking(interleaved, replace(gpt, layers=8), 1) is None
    assert re.search(r"has 4 .*\b6 layers", str(lacking(interleaved, replace(gpt, layers=6), 1)))


def test_ranks_that_divide_no_tile_may_shard_either_side() -> None:
    case = replace(CASE, model=DENOISING, batch=Batch(3))
    check_comparisons(case, [COMPARISONS["fsdp2"].with_layout(Grid(z=3), Grid(data=3))], 1)
    check_comparisons(case, [COMPARISONS["ddp"].with_layout(Grid(data=3), Grid(z=3))], 1)


def test_a_peer_that_has_no_u_net_says_so_and_nothing_of_its_layout() -> None:
    case = replace(CASE, model=DENOISING)
    for name, one in COMPARISONS.items():
        contest = one.with_grid(one.grid)
        check_comparisons(case, [contest], 1)
        lacking = contest.lacking(DENOISING, recompute=0) or ""
        assert lacking.startswith(f"{name} has no unet") is not one.supports(DENOISING)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "model"),
    [
        *((name, MASKED) for name in ("plain", "ddp", "fsdp2", "hsdp", "tensor-parallel")),
        pytest.param("ddp", DENOISING, marks=pytest.mark.weekly),
        ("fsdp2", DENOISING),
        ("channels-last", DENOISING),
    ],
    ids=lambda one: one if isinstance(one, str) else one.family,
)
def test_a_peer_is_trained_on_the_networks_own_task(name: str, model: Architecture) -> None:
    """Over how many masked tokens the loss is a mean differs from rank to rank, and in micro-batches too. Blocks of a
    U-Net take and give several tensors.
    """
    case = replace(CASE, model=model, batch=Batch(8), precision="fp64", peer_micro_batch=2)
    for found in run_processes(COMPARISONS[name].grid, measure, COMPARISONS[name], case):
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-12)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-12)


def unsummed(comm: Comm) -> list[StepMetrics]:
    """Two steps of DDP whose ranks keep their own gradients."""

    def nothing(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
        kept: Future[Tensor] = Future()
        kept.set_result(bucket.buffer())
        return kept

    ddp.bf16_compress_hook = nothing  # type: ignore[assignment]
    case = replace(CASE, precision="bf16", autocast=True)
    step = peer_side(case, comm, ddp.DDP(case, comm))
    return [step(), step()]


def ours_alone(comm: Comm) -> list[StepMetrics]:
    step = Ours(replace(CASE, precision="bf16"), comm).step
    return [step(), step()]


def test_a_peer_that_leaves_out_a_sum_is_found_out_in_bf16_too() -> None:
    grid, tolerance = Grid(data=2), TOLERANCES["bf16"]
    pairs = zip(run_processes(grid, ours_alone), run_processes(grid, unsummed), strict=True)
    for ours, peer in pairs:
        with pytest.raises(RunError, match=r"gradient norm .*0\.01 apart"):
            check_equal("ddp", ours, peer, tolerance)


@pytest.mark.parametrize(
    ("precision", "wrong", "what"),
    [
        ("fp32", "loss", "it never steps"),
        ("fp32", "gradient norm", "its gradients are 3 % too large"),
        ("bf16", "gradient norm", "its gradients are 3 % too large"),
        ("bf16", "gradient norm", "one bias counts twice"),
    ],
)
def test_a_peer_that_trains_slightly_otherwise_is_found_out(precision: PrecisionName, wrong: str, what: str) -> None:
    """At the learning rate that contests have."""
    comm, case = Comm(Grid()), replace(CASE, precision=precision, optim=OptimConfig())
    peer = Plain(case, comm)
    by = {"its gradients are 3 % too large": 1.03, "one bias counts twice": 2.0}.get(what, 1.0)
    for name, parameter in peer._model.named_parameters():
        if what != "one bias counts twice" or name == "blocks.0.feed_forward.fc2.bias":
            parameter.register_hook(lambda gradient: gradient * by)
    if what == "it never steps":
        peer._optimizer.step = lambda *_: None
    ours, theirs = (
        [step() for _ in range(CASE.warmup)] for step in (Ours(case, comm).step, peer_side(case, comm, peer))
    )
    with pytest.raises(RunError, match=f"{wrong} was"):
        check_equal("plain", ours, theirs, TOLERANCES[precision])


def test_sides_that_start_from_other_weights_are_not_compared() -> None:
    comm = Comm(Grid())
    ours = Ours(CASE, comm).step
    peer = peer_side(CASE, comm, Plain(replace(CASE, seed=CASE.seed + 1), comm))
    with pytest.raises(RunError, match="can't be compared"):
        check_equal("plain", [ours()], [peer()], TOLERANCES["fp32"])


def test_of_the_engine_and_itself_untuned_one_side_is_tuned_and_of_others_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Mode | None] = []
    forward = matmul.forward

    def noted(I_MK: Tensor, W_NK: Tensor, bias_N: Tensor | None, mode: Mode | None = None) -> Tensor:
        seen.append(mode)
        return forward(I_MK, W_NK, bias_N, mode)

    monkeypatch.setattr(matmul, "forward", noted)
    chosen = {"blocks.1.feed_forward.fc1": Kernels(forward=Mode.TN)}
    monkeypatch.setattr(alternate, "tuned", lambda training, comm: (chosen, None))
    measured = measure(Comm(Grid()), OWN_COMPARISON, CASE)
    assert seen.count(Mode.TN) == CASE.warmup + CASE.rounds * CASE.steps
    assert set(seen) == {None, Mode.TN}
    assert measured.ours.losses == pytest.approx(measured.peer.losses, rel=1e-6)
    seen.clear()
    measure(Comm(Grid()), COMPARISONS["plain"], CASE)
    assert set(seen) == {None}
    measure(Comm(Grid()), COMPARISONS["plain"], replace(CASE, tune_matmul=True))
    assert set(seen) == {None, Mode.TN}


@pytest.mark.parametrize("other", [StepMetrics(2.0001, 1.0), StepMetrics(2.0, 1.001), StepMetrics(math.nan, 1.0)])
def test_a_loss_or_first_gradient_norm_that_differs_is_an_error(other: StepMetrics) -> None:
    same, tolerance = StepMetrics(2.0, 1.0), TOLERANCES["fp32"]
    check_equal("ddp", [same, same], [StepMetrics(2.00001, 1.00005), StepMetrics(2.00001, 1.1)], tolerance)
    with pytest.raises(RunError, match="in step 0 "):
        check_equal("ddp", [same, same], [other, same], tolerance)
    with pytest.raises(RunError, match=r"step 1 .*loss"):
        check_equal("ddp", [same, same], [same, StepMetrics(2.001, 1.0)], tolerance)


def test_the_rows_of_a_fused_projection_are_reordered_by_rank() -> None:
    model = serial_model(CASE, "cpu")
    qkv = model.blocks[0].attention.qkv.weight  # type: ignore[union-attr]
    q, k, v = qkv.detach().clone().chunk(3)  # type: ignore[operator]
    regroup_parts(model, MODEL.placements(), ranks=2)
    assert torch.equal(qkv[:48], torch.cat([q[:16], k[:16], v[:16]]))  # type: ignore[index]
    assert torch.equal(qkv[48:], torch.cat([q[16:], k[16:], v[16:]]))  # type: ignore[index]
