"""`bench matmul` and `train --tune-matmul` as a user meets them: real ranks, a table that the next job finds."""

import json
from pathlib import Path

import pytest
import torch
from engine_command import SMALL, finish, start, train
from forked_python import briefly

from engine.bench.matmul import Matmul
from engine.cli.main import main
from engine.grid import Grid
from engine.peers.compare import choose_comparisons
from engine.result.schema import Result, peers, read
from engine.result.schema.tuning import TunedShape
from engine.tuning.timing import gemm_variants

ASKED = ["--model", "gpt-test", "--grid", "2x1x2x4", "--micro-batch", "2", "--checkpoint-activations"]


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of tables; one is there after a job."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "par4d" / "matmul"


def tune(tmp_path: Path, *options: str) -> tuple[Result, list[str]]:
    out = tmp_path / "r.json"
    codes, said = train(
        2, *SMALL, "--grid", "1x1x2x1", "--iterations", "3", "--out", str(out), *options, before=briefly
    )
    assert codes == [0, 0], said
    return read(out), said


def test_the_next_job_finds_what_was_timed_and_trains_the_same(tmp_path: Path, table: Path) -> None:
    plain, _ = tune(tmp_path)
    assert plain.tuning is None
    first, said = tune(tmp_path, "--tune-matmul")
    assert first.tuning is not None
    assert first.tuning.timed == len(first.tuning.shapes) > 0
    assert "tuning 1/" in said[0]
    assert said[1] == ""
    (file,) = table.glob("*.json")
    second, _ = tune(tmp_path, "--tune-matmul")
    assert second.tuning is not None
    assert second.tuning.timed == 0
    assert second.tuning.shapes == first.tuning.shapes
    file.write_text(file.read_text()[:-100])
    anew, said = tune(tmp_path, "--tune-matmul")
    assert anew.tuning is not None
    assert anew.tuning.timed == first.tuning.timed
    assert said[0].count("is made anew") == 1
    forced, said = tune(tmp_path, "--tune-matmul=force")
    assert forced.tuning is not None
    assert forced.tuning.timed == first.tuning.timed
    assert "is made anew" not in said[0]
    for result in (first, second, anew, forced):
        assert result.config["tune_matmul"] in (True, "force")
        losses = [step.loss for step in result.iterations]
        assert losses == pytest.approx([step.loss for step in plain.iterations], rel=1e-4)


def test_the_products_of_a_rank_of_a_larger_job_are_timed_twice(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    codes, said = finish(
        start(2, "bench", "matmul", *ASKED, "--twice", "--out", str(out), "--label", "study=k", before=briefly)
    )
    assert codes == [0, 0], said
    result = read(out)
    assert (result.kind, result.status, result.grid, result.ranks) == ("matmul", "ok", "2x1x2x4", 2)
    assert result.model is not None
    assert result.model.name == "gpt-test"
    assert result.tuning is not None
    assert len(result.tuning.again) == len(result.tuning.shapes)
    for shape, again in zip(result.tuning.shapes, result.tuning.again, strict=True):
        check(shape)
        check(again)
        assert [way.chosen for way in shape.times] == [way.chosen for way in again.times]
        assert [way.median_s for way in shape.times] != [way.median_s for way in again.times]
    head, rows = Matmul.table(result)
    assert head[-1] == "times as fast"
    assert [float(row[-1]) for row in rows] == [
        pytest.approx((shape.own_s or 0) / (shape.chosen_s or 1), abs=1e-3) for shape in result.tuning.shapes
    ]


def test_the_engine_takes_turns_with_itself_untuned_on_the_first_blocks_of_a_network(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    words = ["--model", "gpt-test", "--layers", "1", "--grid", "2x1x1x1", "--batch-size", "2", "--rounds", "2"]
    codes, said = finish(
        start(
            2,
            "bench",
            "peers",
            "--peer",
            "untuned",
            *words,
            "--steps-per-round",
            "1",
            "--out",
            str(out),
            before=briefly,
        )
    )
    assert codes == [0, 0], said
    result = peers.parse(json.loads(out.read_text()), str(out))
    assert result.case["model"]["name"] == "gpt-test-l1"
    (contest,) = result.comparisons
    assert contest.peer == "untuned"
    assert "without its tuner" in contest.peer_is
    (job,) = contest.jobs
    assert job.tuning is not None
    assert {shape.layers for shape in job.tuning.shapes} == {1}
    assert all(shape.times for shape in job.tuning.shapes)
    assert contest.equality is not None
    assert contest.equality.losses <= contest.equality.tolerance


def test_the_engines_own_contest_is_held_only_where_it_is_named() -> None:
    assert "untuned" not in [contest.name for contest in choose_comparisons(["all"])]
    (contest,) = choose_comparisons(["untuned"], [Grid(x=2, y=3)])
    assert contest.grid == Grid(x=2, y=3)


def check(shape: TunedShape) -> None:
    """Sums of a table are those of its ways."""
    assert len(shape.times) == len(gemm_variants(torch.float32, torch.device("cpu"), movable=shape.movable))
    assert shape.own_s is not None
    assert shape.chosen_s is not None
    assert shape.best_s is not None
    for way in shape.times:
        assert 0 < way.low_s <= way.median_s <= way.high_s
        assert way.flops_per_s == pytest.approx(2 * shape.m * shape.n * shape.k / way.median_s)
    counted = {"forward": shape.forwards}
    chosen = [way for way in shape.times if way.chosen]
    assert [way.role for way in chosen] == ["forward", "input_gradient", "weight_gradient"]
    most, least = (sum(counted.get(way.role, 1) * getattr(way, end) for way in chosen) for end in ("high_s", "low_s"))
    assert least <= shape.chosen_s <= most
    assert shape.own_s > 0
    assert shape.best_s > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "gpt-test", "--micro-batch", "0"], "--micro-batch is at least 1, but 0 was given."),
        (["--model", "gpt-test", "--grid", "5x1x1x1"], "Grid 5x1x1x1 shares 4 attention heads"),
        (["--model", "none-such"], "none-such"),
    ],
)
def test_what_cant_be_timed_is_one_sentence_and_exit_code_2(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "matmul", *options]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not list(tmp_path.rglob("*.json"))
