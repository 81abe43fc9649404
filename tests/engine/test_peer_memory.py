"""What peers are said to need of a device, against what PyTorch's allocator handed out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from external_cases import fork_externals, skip_with_older_torch
from forked_python import forked_python
from real_ranks import run_processes
from waiting import LONG_S

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.peers import memory
from engine.peers.alternate import measure
from engine.peers.comparison import Case, Comparison
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS
from engine.result.schema.peers import PeerContest

WIDE = GPTConfig("wide", layers=4, hidden=256, heads=4, vocabulary=1024, sequence=64)
DEEP = GPTConfig("deep", layers=8, hidden=64, heads=4, vocabulary=256, sequence=128)
CASE = Case(WIDE, Batch(8), warmup=3, rounds=1, steps=1, timeout_s=LONG_S, meeting_timeout_s=LONG_S)
CASES = {
    "weights": CASE,
    "activations": replace(CASE, model=DEEP, batch=Batch(16)),
    "micro-batches": replace(CASE, model=DEEP, batch=Batch(8), peer_micro_batch=2),
    "recomputed": replace(CASE, model=DEEP, batch=Batch(16), checkpoint_every=1),
    "images": replace(CASE, model=lookup("unet-tiny"), batch=Batch(32), checkpoint_every=1),
}
WITHIN = 0.25


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
        ("tensor-parallel-sp", None, ["activations", "micro-batches"]),
        pytest.param("pipeline-gpipe", "pipeline=2", ["micro-batches", "recomputed"], marks=pytest.mark.weekly),
        ("pipeline-1f1b", "pipeline=2", ["weights", "micro-batches", "recomputed"]),
    ],
)
def test_a_peer_takes_about_what_is_said(name: str, layout: str | None, cases: list[str]) -> None:
    contest = COMPARISONS[name]
    contest = contest.laid_out(Layout.parse(layout), contest.grid) if layout else contest
    skip_with_older_torch(contest)
    by_rank = run_processes(contest.grid, took, contest, cases, forked_python())
    for what in cases:
        case = CASES[what]
        most = max(one[what].peer.peak_bytes or 0 for one in by_rank)
        said = memory.peer(contest, case, "cpu")
        assert said == pytest.approx(most, rel=WITHIN), f"{what}: {said / most:.2f} of {most}"


def test_every_peer_has_its_habits() -> None:
    assert set(memory.MEMORY) == set(COMPARISONS)


def test_what_is_divided_among_ranks_is_what_their_papers_say() -> None:
    """Rajbhandari et al. 2020, Fig. 1: of 7.5 billion parameters 120, 31.4, 16.6 and 1.9 GB on 64 ranks; 16 bytes each,
    which are 18 where gradients are summed in fp32, as here.
    """
    model = lookup("gpt-5b")
    case = Case(model, Batch(64), precision="bf16", checkpoint_every=1)

    def a_parameter(stage: str) -> float:
        ranks = memory.Ranks(1, 1, 64, 1, 1)
        habits = replace(memory.MEMORY["deepspeed-zero1"], data=stage)  # type: ignore[arg-type]
        return memory._trained(habits, ranks, case) / model.parameters

    nothing, one, two, three = (a_parameter(stage) for stage in ("nothing", "optimizer", "gradients", "weights"))
    assert nothing - one == pytest.approx(12 * 63 / 64)
    assert one - two == pytest.approx(4 * 63 / 64)
    assert three < two


def test_fully_shard_holds_no_copy_of_its_shares() -> None:
    model = lookup("gpt-5b")
    case = Case(model, Batch(64), precision="bf16", checkpoint_every=1)
    ranks = memory.Ranks(1, 1, 64, 1, 1)
    states, others = (
        memory._trained(memory.MEMORY[name], ranks, case) / model.parameters
        for name in ("fsdp2-reshard", "deepspeed-zero3")
    )
    assert others - states == pytest.approx(2 / 64)


def test_a_schedule_of_all_forwards_keeps_all_micro_batches_and_the_other_one_a_stage() -> None:
    case = Case(DEEP, Batch(64))

    def needs(name: str, parts: int) -> float:
        return memory.peer(COMPARISONS[name].laid_out(Layout(pipeline=2, micro_batches=parts), Grid(z=2)), case, "cpu")

    assert needs("pipeline-gpipe", 16) > 1.5 * needs("pipeline-1f1b", 16)
    assert needs("pipeline-gpipe", 2) == needs("pipeline-1f1b", 2)


def test_attention_keeps_no_scores_where_the_settings_make_it_one_kernel() -> None:
    case = Case(lookup("gpt-5b"), Batch(8))
    contest = COMPARISONS["colossalai"].laid_out(Layout(tensor=2), Grid(x=2))
    scores = 8 * case.model.sequence**2 * case.model.heads / 2 * 3 * 4 * case.model.layers
    assert memory.peer(contest, case, "cpu") - memory.peer(contest, case, "cuda") == pytest.approx(scores)


def test_a_head_that_reads_one_token_makes_logits_of_it_alone() -> None:
    vit, ranks = lookup("vit-test"), memory.Ranks(1, 1, 1, 8, 1)
    few, more = (
        memory._activations(memory.MEMORY["plain"], ranks, Case(replace(vit, classes=classes), Batch(8)))  # type: ignore[type-var]
        for classes in (1000, 2000)
    )
    assert more - few == pytest.approx(8 * 1000 * 3 * 4)


def test_what_does_not_fit_is_told_with_its_numbers() -> None:
    room = memory.Room("cuda", 40e9, 256e9)
    assert room.lacking("the engine", 88e9) == (
        "the engine does not fit: needs 88 of 28 GB that a plan counts on of a device's 40."
    )
    assert room.lacking("ddp", 20e9) is None
    assert not room.fits(40e9)
    assert room.fits(20e9)
    assert memory.Room("cuda").fits(108e9)
    assert "needs 200 of 179 GB" in str(room.lacking_in_node("megatron-core", 200e9))


def test_megatron_core_divides_its_optimizer_where_its_settings_say_so() -> None:
    case = Case(lookup("gpt-5b"), Batch(64), precision="bf16", checkpoint_every=1)
    contest = COMPARISONS["megatron-core"].laid_out(Layout(tensor=2, data=8), Grid(data=16))
    assert memory.peer(contest, case, "cuda") < 0.6 * memory.peer(contest, case, "cpu")
