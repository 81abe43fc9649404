"""`bench grids`: which grids it compares, that all train the same, and the rows that judge the model by them."""

from pathlib import Path
from typing import Any

import pytest
from engine_command import SMALL, finish, start

from engine.batch import Batch
from engine.cli.trained import trained
from engine.contest.grids import CheckedGrids, GridChoice, check_grids, model_of, name
from engine.contest.rounds import Rounds
from engine.errors import UsageError
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL
from engine.result.schema import read, write
from engine.result.schema.contest import Contest, GridSide
from engine.training.config import RunConfig
from engine.validation.measured import measured_in

TWO = ("1x1x1x2", "1x1x2x1,2", "1x1x1x1p2,2,zero-bubble", "1x1x1x1p2,2,message-driven, limit 2")


def asked(*choices: str, ranks: int = 2, **changes: Any) -> CheckedGrids:
    model = ModelChoice(layers=2, hidden=32, heads=4, vocab=64, seq=8)
    config = RunConfig(model=model, batch=Batch(8), data="synthetic", device="cpu", **changes)
    return check_grids(config, ALL, ranks, Rounds(), dict.fromkeys(map(GridChoice.parse, choices)))[0]


def test_a_grid_is_compared_once_and_schedules_of_a_grid_share_a_model() -> None:
    run = asked(*TWO, "1x1x1x2,4", "1x1x1x1p2,4,gpipe")
    assert run.as_options()["grids"] == ["1x1x1x2,4", *TWO[1:], "1x1x1x1p2,4,gpipe"]
    assert [name(one) for one in asked(*run.as_options()["grids"]).runs] == run.as_options()["grids"]
    assert len({model_of(one) for one in run.runs}) == len(run.runs) - 1
    assert run.config.iterations - run.config.warmup == len(run.runs) * run.rounds.rounds * run.rounds.steps


def test_a_tensor_mode_is_a_choice_of_its_own() -> None:
    choices = ("1x2x1x1", "1x2x1x1,split", "1x2x1x1,1,split", "1x2x1x1,4", "1x2x1x1,4,4d")
    found = ["1x2x1x1,8", "1x2x1x1,1", "1x2x1x1,4", "1x2x1x1,4,4d"]
    assert asked(*choices).as_options()["grids"] == found
    assert asked(*found).as_options()["grids"] == found
    assert asked("1x2x1x1", "1x2x1x1,auto", tensor_mode="4d").as_options()["grids"] == ["1x2x1x1,8,4d", "1x2x1x1,8"]
    modes = GridChoice.parse("1x1x1x2p4,2,message-driven, limit 2,split"), GridChoice.parse("1x2x1x1,auto")
    assert [(one.micro, one.mode, one.schedule is None) for one in modes] == [(2, "split", False), (None, "auto", True)]


@pytest.mark.parametrize(
    ("choices", "changes", "sentence"),
    [
        (("1x1x1x2",), {}, "given 1x1x1x2,4"),
        (("1x1x1x2", "1x1x1x4"), {}, "has 4 ranks, but 2"),
        (("1x1x1x2", "1x1x2x1,3"), {}, "micro-batches of 3"),
        (("1x1x1x2", "1x1x2x1,0"), {}, "--micro-batch"),
        (("1x1x1x2", "1x1x1x1p2,1,gpip"), {}, "'gpip'"),
        (("1x1x1x2", "1x1x1x1p2,some"), {}, "is written GRID"),
        (("1x1x1x2", "1x1x1x1p2,1,message-driven, limit"), {}, "is written GRID"),
        (("1x1x1x2", "1x1x2x1"), {"device_memory": 7e5}, "models of 2 grids"),
    ],
)
def test_what_cant_be_compared_is_one_sentence(
    choices: tuple[str, ...], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        asked(*choices, **changes)


def test_two_processes_train_the_same_on_every_grid_and_their_times_are_rows_that_judge_the_model(
    tmp_path: Path,
) -> None:
    out = tmp_path / "result.json"
    words = [word for choice in TWO for word in ("--candidate", choice)]
    labels = ["--label", "study=grids", "--label", "system=vcluster", "--label", "series=some"]
    codes, said = finish(start(2, "bench", "grids", *SMALL, *words, *labels, "--rounds", "3", "--out", str(out)))
    assert codes == [0, 0], said
    result = read(out)
    assert (result.kind, result.status, result.config["grids"][0]) == ("grids", "ok", "1x1x1x2,4")
    first, over, zero_bubble, driven = result.iterations[: len(TWO)]
    assert (first.loss, over.loss) == (pytest.approx(zero_bubble.loss, rel=1e-5), pytest.approx(first.loss, rel=1e-5))
    assert driven.loss != zero_bubble.loss, "the second step of the model that both schedules train"
    assert [one.over_base is None for one in result.sides(GridSide)] == [True, False, False, False]
    assert all(len(one.rounds_s) == 3 for one in result.sides(GridSide))
    assert len(trained(result).splitlines()) == 1 + len(TWO)
    assert "round 3/3  1x1x2x1,2" in said[0]
    slower = [
        one.model_copy(update={"rounds_s": tuple((9.0,) for _ in one.rounds_s for _ in range(9))})
        for one in result.sides(GridSide)
    ]
    write(
        result.model_copy(update={"contest": Contest(base=slower[0].name, sides=tuple(slower))}),
        tmp_path / "later" / "result.json",
    )
    (job,) = measured_in(tmp_path)
    assert set(job.time_s.values()) | {run.time_s for run in job.pipelines} == {9.0}, "of all steps of both jobs"
    assert list(job.time_s) == ["1x1x1x2"], "the other one doesn't take its share at once"
    assert [(run.grid, run.micro_batch) for run in job.pipelines] == [("1x1x1x1p2", 2)] * 2
    assert {run.schedule for run in job.pipelines} == {"zero-bubble", "message-driven, limit 2"}


def test_without_candidates_the_plan_for_a_named_system_gives_them_with_its_times(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    options = ["--system", "vcluster", "--first", "2", "--rounds", "1", "--out", str(out)]
    codes, said = finish(start(2, "bench", "grids", *SMALL, *options))
    assert codes == [0, 0], said
    one, other = read(out).sides(GridSide)
    assert one.predicted_s is not None
    assert other.predicted_s is not None
    assert one.predicted_s <= other.predicted_s
    codes, said = finish(start(2, "bench", "grids", *SMALL, *options, "--grid", "1x1x1x2"))
    assert codes == [2, 2]
    assert "--candidate 1x1x1x2" in said[0]
