"""Contests whose sides take a few sequences at once and add up gradients: they train what one large batch trains."""

from dataclasses import replace
from pathlib import Path

import pytest
from external_cases import fork_externals, skip_with_older_torch
from forked_python import forked_python
from real_ranks import run_processes
from waiting import LONG_S

from engine.batch import Batch
from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.alternate import measure
from engine.peers.comparison import Case, Comparison
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS
from engine.result.schema.peers import PeerContest
from engine.training_record import OptimConfig

GPT = GPTConfig("tiny", layers=2, hidden=32, heads=4, vocabulary=64, sequence=16)
LLAMA = LlamaConfig("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=64, sequence=16)
CASE = Case(
    GPT,
    Batch(8),
    optim=OptimConfig(learning_rate=1e-2),
    warmup=3,
    rounds=1,
    steps=1,
    timeout_s=LONG_S,
    meeting_timeout_s=LONG_S,
)
OURS, PEERS = 2, 1
"""Sequences that a rank of either side takes at once, which may differ."""


def losses(comm: Comm, contest: Comparison, case: Case, python: Path) -> tuple[PeerContest, PeerContest]:
    """Ours at once, which other tests compare with the peer's, and both sides in parts."""
    fork_externals(python)
    launch = Launch(comm.rank, comm.grid.size, comm.rank, "test", "127.0.0.1", 0)
    whole = measure(comm, contest, case, ("ours",), launch)
    parts = replace(case, batch=replace(case.batch, micro=OURS), peer_micro_batch=PEERS)
    return whole, measure(comm, contest, parts, launch=launch)


def check(contest: Comparison, case: Case, within: float) -> None:
    for whole, parts in run_processes(contest.grid, losses, contest, case, forked_python()):
        for one in (parts.ours, parts.peer):
            assert one.losses == pytest.approx(whole.ours.losses, rel=within)
            assert one.gradient_norms == pytest.approx(whole.ours.gradient_norms, rel=within)
        assert len(set(parts.peer.losses)) == 3


WEEKLY = [pytest.param(name, marks=pytest.mark.weekly) for name in ("fsdp2-reshard", "hsdp", "tensor-parallel")]
"""What differs from them in a setting is trained at each change."""


@pytest.mark.parametrize("name", ["plain", "ddp", "fsdp2", *WEEKLY, "tensor-parallel-sp"])
def test_a_peer_adds_up_the_gradients_of_its_micro_batches(name: str) -> None:
    check(COMPARISONS[name], replace(CASE, precision="fp64"), 1e-12)


def test_fsdp2_over_copies_recomputes_and_adds_up_alike() -> None:
    check(COMPARISONS["hsdp"], replace(CASE, precision="fp64", checkpoint_every=1), 1e-12)


@pytest.mark.parametrize(
    ("name", "layout", "model"), [("pipeline-1f1b", "pipeline=2", GPT), ("transformers-tp", "tensor=2", LLAMA)]
)
def test_an_external_peer_adds_up_the_gradients_of_its_micro_batches(
    name: str, layout: str, model: GPTConfig | LlamaConfig
) -> None:
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), Grid(data=2))
    skip_with_older_torch(contest)
    check(contest, replace(CASE, model=model), 1e-5)


def test_micro_batches_that_do_not_divide_a_share_are_told(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["--layers", "1", "--hidden", "16", "--heads", "2", "--vocab", "32", "--seq", "8", "--batch-size", "4"]
    told = {
        ("--peer", "ddp", "--micro-batch", "4"): "2 of the 4 sequences",
        ("--peer", "pipeline-gpipe", "--micro-batch", "1", "--peer-micro-batch", "3"): "--peer-micro-batch one of 1, 2",
        ("--peer", "plain", "--micro-batch", "-1"): "but -1 was given",
    }
    for words, says in told.items():
        assert main(["bench", "peers", *tiny, *words, "--out", f"{tmp_path}/peers.json"]) == 2
        assert says in capsys.readouterr().err
