"""Contests in fp16: both sides scale their loss alike, train the same, and end the contest where one skips a step."""

from dataclasses import replace
from pathlib import Path

import pytest
from external_cases import CASE, GPT, LLAMA, hold
from real_ranks import run_processes
from test_external_peers import TINY
from virtual_ranks import run_ranks

from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import RunError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.peers import memory
from engine.peers.alternate import measure
from engine.peers.comparison import Case, Comparison
from engine.peers.layout import Layout
from engine.peers.ours import Ours
from engine.peers.registry import COMPARISONS, OWN_COMPARISON, another_commit, environment_lack
from engine.peers.timed_side import LocalSide
from engine.result.schema.peers import PeerContest
from engine.training.equality import TOLERANCES
from engine.training.trainer import LossScale
from engine.training_record import OptimConfig, PrecisionName

HALF = replace(CASE, precision="fp16", optim=OptimConfig(learning_rate=1e-3))
TOO_LARGE = 2.0**24
"""Loss scale at which gradients of these networks overflow: their norm is about 1."""
WEEKLY = pytest.mark.weekly


def laid_out(name: str, layout: str) -> Comparison:
    """Return the comparison with a library, or skip the test where its environment isn't there."""
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), Grid(data=Layout.parse(layout).size))
    if reason := environment_lack(contest.library):
        pytest.skip(reason)
    return contest


@pytest.mark.parametrize(
    ("name", "layout", "model", "precision"),
    [
        ("deepspeed-3d", "tensor=2", LLAMA, "fp16"),
        ("megatron-core", "pipeline=2,micro_batches=4", GPT, "fp16"),
        pytest.param("deepspeed-pipeline", "pipeline=2", GPT, "fp16", marks=WEEKLY),
        pytest.param("deepspeed-zero1", "data=2", GPT, "fp16", marks=WEEKLY),
        pytest.param("deepspeed-zero2", "data=2", LLAMA, "fp16", marks=WEEKLY),
        pytest.param("deepspeed-zero3", "data=2", LLAMA, "fp16", marks=WEEKLY),
        pytest.param("deepspeed-3d", "tensor=2,pipeline=2,micro_batches=2", GPT, "fp16", marks=WEEKLY),
        pytest.param("megatron-core", "tensor=2", LLAMA, "fp16", marks=WEEKLY),
        pytest.param("megatron-core", "data=2", GPT, "bf16", marks=WEEKLY),
        pytest.param("megatron-core-sp", "tensor=2", GPT, "bf16", marks=WEEKLY),
    ],
)
def test_a_library_trains_in_half_the_width_what_the_engine_trains(
    name: str, layout: str, model: Architecture, precision: PrecisionName
) -> None:
    contest, tolerance = laid_out(name, layout), TOLERANCES[precision]
    for found in run_processes(contest.grid, hold, contest, replace(HALF, model=model, precision=precision)):
        assert isinstance(found, PeerContest), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=tolerance.losses)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=tolerance.norms)
        assert found.ours.losses != found.peer.losses, "each rounds in its own order"


def of_peer(comm: Comm, contest: Comparison, case: Case) -> str:
    """Take the peer's steps alone; return what ended them."""
    try:
        measure(comm, contest, case, ("peer",), Launch(comm.rank, comm.grid.size, comm.rank, "test", "127.0.0.1", 0))
    except RunError as error:
        return str(error)
    return ""


@WEEKLY
@pytest.mark.parametrize(
    ("name", "layout"), [("deepspeed-zero1", "data=2"), ("deepspeed-3d", "tensor=2"), ("megatron-core", "tensor=2")]
)
def test_a_step_that_a_library_skips_ends_the_contest(name: str, layout: str) -> None:
    contest = laid_out(name, layout)
    for found in run_processes(contest.grid, of_peer, contest, replace(HALF, loss_scale=TOO_LARGE)):
        assert "--loss-scale" in found, found


def skipped_by_ours(comm: Comm) -> tuple[str, str]:
    """Return what ended a contest whose scale is too large from the start, and of one whose gradients grow later."""
    told = []
    for scale in (TOO_LARGE, HALF.loss_scale):
        ours = Ours(replace(HALF, loss_scale=scale), comm)
        try:
            side = LocalSide(lambda one=ours: one.step, comm.device, 3)
            ours._trainer.loss_scale = LossScale(TOO_LARGE)
            side.take(2)
        except RunError as error:
            told.append(str(error))
    return told[0], told[1]


def test_a_step_that_the_engine_skips_ends_the_contest_in_its_warm_up_and_in_a_timed_round() -> None:
    for told in run_processes(Grid(z=2), skipped_by_ours):
        assert ["--loss-scale" in one for one in told] == [True, True]


def scales(comm: Comm) -> list[float | None]:
    ours, found = Ours(HALF, comm), []
    for _ in range(4):
        ours.step()
        assert ours._trainer.loss_scale is not None
        found.append((ours._trainer.loss_scale.value, ours._trainer.loss_scale.skipped))
    return found


def test_the_engines_scale_is_that_of_the_contest_and_stays() -> None:
    assert run_ranks(Grid(), scales) == [[(2.0**16, 0)] * 4]


def test_what_scales_no_loss_is_refused_by_name() -> None:
    takes = {name for name, one in COMPARISONS.items() if one.lacking(LLAMA, recompute=0, precision="fp16") is None}
    assert takes == {name for name in COMPARISONS if name.startswith(("deepspeed", "megatron"))}
    assert "ddp" in str(COMPARISONS["ddp"].lacking(LLAMA, recompute=0, precision="fp16"))
    assert COMPARISONS["ddp"].lacking(LLAMA, recompute=0, precision="bf16") is None
    root = Path(__file__).parents[2]
    assert [one.lacking(GPT, recompute=0, precision="fp16") for one in (OWN_COMPARISON, another_commit(root))] == [
        None
    ] * 2


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_autocast_of_another_format_than_bf16_is_refused(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "peers", *TINY, "--peer", "ddp", "--precision", precision, "--autocast"]
    assert main(words) == 2
    assert "--autocast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scale", "precision"), [("0.5", "fp16"), ("nan", "fp16"), ("1e39", "fp16"), ("1024", "bf16"), ("1024", "fp32")]
)
def test_a_loss_scale_that_is_none_or_of_another_format_is_refused(
    scale: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "peers", *TINY, "--peer", "ddp", "--precision", precision, "--loss-scale", scale]
    assert main([*words, "--out", str(tmp_path / "peers.json")]) == 2
    assert "--loss-scale" in capsys.readouterr().err
    assert not (tmp_path / "peers.json").exists()


@pytest.mark.parametrize("name", ["deepspeed-3d", "deepspeed-zero3", "megatron-core", "megatron-core-sp"])
def test_a_rank_needs_as_much_memory_as_in_bf16(name: str) -> None:
    contest = COMPARISONS[name].with_layout(Layout(data=2), Grid(data=2))
    need = {one: memory.side_bytes(contest, replace(CASE, precision=one), "cuda") for one in ("fp16", "bf16", "fp32")}
    assert need["fp16"] == need["bf16"]
    assert need["fp16"].peer < need["fp32"].peer
