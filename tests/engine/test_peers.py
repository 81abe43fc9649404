"""The peers train what the engine trains, and are timed in the same run."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from real_ranks import run_processes

from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.alternate import check_equal, measure, our_side, peer_side
from engine.peers.compare import comparison
from engine.peers.contest import CONTESTS, Case, Measured, Side
from engine.peers.peer import Values, serial_model
from engine.peers.plain import Plain
from engine.peers.tensor_parallel import regroup_parts
from engine.training.config import OptimConfig

MODEL = GPTConfig("tiny", layers=2, hidden=32, heads=4, vocabulary=64, sequence=16)
CASE = Case(MODEL, sequences=4, optim=OptimConfig(learning_rate=1e-2), warmup=3, rounds=2, steps=1)
SHAPE = {"--layers": 1, "--hidden": 16, "--heads": 2, "--vocab": 32, "--seq": 8, "--batch-size": 2}
TINY = [str(word) for pair in (SHAPE | {"--jobs": 2, "--rounds": 3, "--steps-per-round": 2}).items() for word in pair]


LLAMA = LlamaConfig("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=64, sequence=16)


@pytest.mark.parametrize("model", [MODEL, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("name", CONTESTS)
def test_a_peer_has_the_engines_losses_over_three_steps(name: str, model: Architecture) -> None:
    for measured in run_processes(CONTESTS[name].grid, measure, CONTESTS[name], replace(CASE, model=model)):
        ours, peer = measured.ours.losses, measured.peer.losses
        assert len(ours) == 3
        assert ours == pytest.approx(peer, rel=1e-5)
        assert len(set(ours)) == 3
        assert (
            [len(times) for times in measured.ours.wall_s] == [len(times) for times in measured.peer.wall_s] == [1, 1]
        )


def test_sides_that_start_from_other_weights_are_not_compared() -> None:
    comm = Comm(Grid())
    ours = our_side(CASE, comm)
    peer = peer_side(CASE, comm, Plain(replace(CASE, seed=CASE.seed + 1), comm))
    with pytest.raises(RunError, match="can't be compared"):
        check_equal("plain", [ours()], [peer()])


@pytest.mark.parametrize("other", [Values(2.001, 1.0), Values(2.0, 1.001), Values(math.nan, 1.0)])
def test_a_loss_or_gradient_norm_that_differs_is_an_error(other: Values) -> None:
    same = Values(2.0, 1.0)
    check_equal("ddp", [same, same], [same, Values(2.00001, 1.00001)])
    with pytest.raises(RunError, match="in step 1 "):
        check_equal("ddp", [same, same], [same, other])


def test_the_rows_of_a_fused_projection_are_reordered_by_rank() -> None:
    model = serial_model(CASE)
    qkv = model.blocks[0].attention.qkv.weight  # type: ignore[union-attr]
    q, k, v = qkv.detach().clone().chunk(3)  # type: ignore[operator]
    regroup_parts(model, MODEL.placements(), ranks=2)
    assert torch.equal(qkv[:48], torch.cat([q[:16], k[:16], v[:16]]))  # type: ignore[index]
    assert torch.equal(qkv[48:], torch.cat([q[16:], k[16:], v[16:]]))  # type: ignore[index]


def test_the_ratio_is_the_median_of_the_jobs_ratios_of_medians() -> None:
    peer = Side((1.0,), wall_s=((4.0, 4.0), (5.0, 3.0)), cpu_s=((4.0, 4.0),))
    jobs = [
        Measured(Side((1.0,), wall_s=((scale, 2 * scale), (2 * scale, 90.0)), cpu_s=((1.0, 1.0),)), peer)
        for scale in (1.0, 3.0, 2.0)
    ]
    found = comparison(CONTESTS["ddp"], jobs, load=0.0)
    assert found.job_ratios == pytest.approx((0.5, 1.5, 1.0))
    assert (found.ratio, found.cpu_ratio, found.peer_median_s) == pytest.approx((1.0, 0.25, 4.0))
    assert found.round_ratios[:2] == pytest.approx((1.5 / 4, 46.0 / 4))


def test_the_command_writes_every_step_time_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "peers.json"
    assert main(["bench", "peers", "--peer", "plain", *TINY, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    (found,) = report["comparisons"]
    for side in ("ours", "peer"):
        assert [[len(times) for times in job[side]["wall_s"]] for job in found["measured"]] == [[2, 2, 2]] * 2
    assert report["case"]["model"]["hidden"] == 16
    assert report["case"]["threads"] == 1
    header, row = capsys.readouterr().out.splitlines()
    assert header.startswith("peer")
    assert row.split()[:2] == ["plain", "1x1x1x1"]


def test_a_peer_that_takes_too_long_is_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "peers.json"
    assert main(["bench", "peers", "--peer", "plain", *TINY, "--timeout", "0.01", "--out", str(out)]) == 1
    assert "did not end within 0.01 s" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--peer", "fdsp2"], "did you mean fsdp2"),
        (["--rounds", "0"], "--rounds is at least 1, but 0 was given."),
        (["--peer", "ddp", "--batch-size", "3"], "use --batch-size 4"),
        (["--model", "gpt-test", "--layers", "2"], "not both"),
        (["--dropout", "0.1"], "compare without --dropout"),
        (["--peer", "tensor-parallel", "--tied"], "tensor-parallel makes two tables of a tied one"),
        (["--out", "."], "--out . is a folder: give the name of a file."),
        (["--peer", "fsdp2", "--grid", "2x1x2x1"], "only z may be larger than 1, but x is"),
        (["--peer", "plain", "--grid", "1x1x2x2"], ": no axis may be larger than 1, but z and data are"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_starts(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.json"
    assert main(["bench", "peers", "--out", str(out), *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()
