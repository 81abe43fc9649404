"""The page of the study of pipelines: what a reader sees of it."""

import csv
import re
from pathlib import Path

import pandas as pd
import pytest
from reading import built, table
from sample_pipelines import SCHEDULES, pipeline, with_times
from sample_results import save

from engine.result.judges.bubble import rounds_of
from engine.result.schema import Result
from engine.result.schema.contest import ScheduleSide
from reports.figures.stages import fastest_grids, time_in_stages
from reports.frames.frame import frames
from reports.pages.pipeline import compared
from reports.plots.timeline import MOST_STAGES, DrawnSchedule, draw_schedules, list_tasks
from reports.read.load import load

QUIET = "gpt-vcluster-deep-on-1x1x1x1p4-4-stages"


def site_of(results: list[Result], folder: Path) -> Path:
    return built(folder, results) / "pipeline.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a setting on a quiet machine and with a slow stage, of which a job failed."""
    runs = [*pipeline(jobs=3), *pipeline(jobs=2, slow_stage=2, delays_s=0.005, job=10)]
    return site_of([*runs, *pipeline(slow_stage=2, failure="rank 3 was killed", job=20)], tmp_path_factory.mktemp("p"))


def rows_of(page: Path, name: str) -> list[dict[str, str]]:
    return table(page, f"pipeline-{name}")


def test_jobs_of_one_setting_are_pooled_and_what_was_slowed_down_is_another_setting(page: Path) -> None:
    listed = rows_of(page, "settings")
    told = {row["disturbed"]: (row["grid"], row["micro_batches"], row["rounds"]) for row in listed}
    assert {tuple(re.findall(r"\d+", disturbed)): row for disturbed, row in told.items()} == {
        (): ("1x1x1x1p4", "8.0", "18.0"),
        ("2", "20", "5"): ("1x1x1x1p4", "8.0", "12.0"),  # stage, %, ms
        ("2", "20"): ("1x1x1x1p4", "8.0", ""),
    }
    assert "rank 3 was killed" in page.read_text()
    assert "no run of 1f1b" not in page.read_text(), "where all jobs failed that is said instead"


def test_each_bubble_stands_beside_the_formula_s_with_what_is_decided_of_it(tmp_path: Path) -> None:
    equal = [with_times(run, of_formula=0.97) for run in pipeline(jobs=3)]
    longer = [with_times(run, of_formula=1.5) for run in pipeline(jobs=3, grid="1x1x2x1p4", job=10)]
    slowed = [with_times(run, of_formula=0.97) for run in pipeline(slow_stage=2, job=20)]
    uneven = [with_times(run, of_formula=0.97, uneven=0.03) for run in pipeline(jobs=3, grid="1x1x1x2p4", job=30)]
    page = site_of([*equal, *longer, *slowed, *uneven], tmp_path)
    rows = {(row["grid"], row["schedule"]): row for row in rows_of(page, "bubbles")}
    assert {key: (row["outcome"], row["why"]) for key, row in rows.items()} == {
        **{("1x1x1x1p4", name): ("pass", "") for name in ("1f1b", "gpipe", "zero-bubble")},
        **{("1x1x2x1p4", name): ("fail", "") for name in ("1f1b", "gpipe", "zero-bubble")},
        **{("1x1x1x2p4", name): ("undecided", "stages aren't equal") for name in ("1f1b", "gpipe", "zero-bubble")},
    }
    row = rows["1x1x1x1p4", "gpipe"]
    assert [float(row[key]) for key in ("micro_batches", "formula_bubble")] == [8, 3 / 8]
    assert float(row["bubble_low"]) <= float(row["bubble"]) <= float(row["bubble_high"])
    assert float(rows["1x1x1x1p4", "zero-bubble"]["formula_bubble"]) == 3 / 16
    table = re.findall(r"Bubbles beside the formula</h2>.*?</table>", page.read_text(), re.DOTALL)[0]
    assert [table.count(f">{outcome}<") for outcome in ("pass", "fail", "undecided")] == [3, 3, 3]
    assert "stages aren" in table


def test_a_table_has_each_schedule_with_its_ratio_to_1f1b_and_both_idle_shares(tmp_path: Path) -> None:
    save(pipeline(jobs=3), tmp_path)
    (one,) = compared(frames(load([tmp_path]).runs))
    assert one.table["schedule"].tolist() == list(SCHEDULES)
    assert (one.stages, one.micro_batches) == (4, 8)
    rows = {row["schedule"]: row for _, row in one.table.iterrows()}
    assert rows["1f1b"]["ratio"] != rows["1f1b"]["ratio"]
    assert rows["zero-bubble"]["ratio_low"] < rows["zero-bubble"]["ratio"] < rows["zero-bubble"]["ratio_high"] < 1
    assert rows["gpipe"]["held"] == 8
    for row in rows.values():
        assert row["idle_least"] <= row["idle"] <= row["idle_most"]
        assert 0 < row["simulated_idle"] < 1
    best = one.best()
    assert best is not None
    assert best["ratio"] == min(row["ratio"] for row in rows.values() if row["schedule"] != "1f1b")


def test_the_timeline_has_a_row_a_stage_and_each_task_with_its_micro_batch(page: Path) -> None:
    figure = re.findall(r"<h3>One step of all stages</h3>.*?</figure>", page.read_text(), re.DOTALL)[0]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", figure)
    assert texts.count("stage 3") == len(SCHEDULES)
    assert {name + (" (auto)" if name == "zero-bubble" else "") for name in SCHEDULES} <= set(texts)
    assert texts.count("7") >= 4 * 2 * len(SCHEDULES) / 2
    assert "7\u2032" in texts
    names = sorted(path.name for path in (page.parent / "data").glob("pipeline-*-timeline.csv"))
    assert len(names) == 2
    drawn = list(csv.DictReader((page.parent / "data" / names[0]).open()))
    wanted = sum(
        4 * 8 * {"interleaved": 4}.get(name, 3 if name.endswith(("zb", "bubble")) else 2) for name in SCHEDULES
    )
    assert len(drawn) == wanted


def test_what_no_clock_shows_is_not_drawn_and_of_many_stages_some() -> None:
    odd = (("X1", 0.0, 0.5), ("F0", float("nan"), 0.5), ("F1", 0.6, 0.4), ("F2", 0.2, 9.0), ("F3", 0.0, 0.5))
    kept = list_tasks([DrawnSchedule("a", "", 1.0, (odd,)), DrawnSchedule("b", "", float("nan"), (odd,))])
    assert kept["task"].tolist() == ["F3"]
    assert draw_schedules([DrawnSchedule("a", "", 1.0, ((),))]) is None
    many = draw_schedules([DrawnSchedule("a", "", 1.0, ((("F0", 0.0, 0.5),),) * 48)])
    assert many is not None
    rows = [label.get_text() for label in many.axes[0].get_yticklabels()]
    assert (len(rows), rows[0], rows[-1]) == (MOST_STAGES, "stage 0", "stage 47")


def test_what_the_paper_gained_by_fewer_stages_stands_below_with_its_source(page: Path) -> None:
    said = page.read_text().split("Published gains")[1]
    for words in ("axonn-ipdps22 section V-B", "13 %", "34.05 s instead of 46.08 s"):
        assert words in said


def test_a_page_without_a_timeline_or_without_1f1b_is_whole(tmp_path: Path) -> None:
    runs = [*pipeline(drawn=False, schedules=("gpipe", "1f1b")), *pipeline(grid="1x1x1x2p2", schedules=("gpipe",))]
    html = site_of(runs, tmp_path).read_text()
    assert "stages</h3>" in html
    assert "no run of 1f1b" in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)


def test_time_in_stages_is_work_and_waits_with_an_interval_over_jobs() -> None:
    runs = pipeline(jobs=3, schedules=("1f1b",))
    sides = [side for run in runs for side in run.sides(ScheduleSide)]
    found = time_in_stages(sides)
    rounds = [one for side in sides for one in rounds_of(side)]
    assert len(rounds) == 18
    usual = sorted(one.idle_s + sum(one.works_s) / 4 for one in rounds)
    assert usual[0] <= found["in_stages_s"] <= usual[-1]
    assert found["in_stages_s_low"] < found["in_stages_s"] < found["in_stages_s_high"]
    timeless = {"idle_s": (), "work_s": ()}
    older = [
        side.model_copy(update={"stages": tuple(stage.model_copy(update=timeless) for stage in side.stages)})
        for side in sides
    ]
    assert all(value != value for value in time_in_stages(older).values())


def over_stages(page: Path) -> list[dict[str, str]]:
    """The points of the lines of the only figure."""
    (path,) = (page.parent / "data").glob("pipeline-*-stages.csv")
    return list(csv.DictReader(path.open()))


def test_time_over_stages_has_a_line_a_schedule_by_the_grid_that_is_the_fastest_of_as_many_stages(
    tmp_path: Path,
) -> None:
    names = ("1f1b", "gpipe")
    runs = [
        *pipeline(jobs=2, grid="1x1x1x1p4", schedules=names),
        *pipeline(jobs=2, grid="1x2x1x1p2", schedules=names, job=10),
        *(slower(run) for run in pipeline(jobs=2, grid="2x1x1x1p2", schedules=names, job=20)),
        *pipeline(jobs=2, grid="1x1x1x4p2", schedules=names, job=30),  # on other devices, with one number of stages
    ]
    page = site_of(runs, tmp_path)
    rows = over_stages(page)
    assert [(row["schedule"], row["stages"], row["grid"]) for row in sorted(rows, key=str)] == [
        ("1f1b", "2", "1x2x1x1p2"),
        ("gpipe", "2", "1x2x1x1p2"),
        ("1f1b", "4", "1x1x1x1p4"),
        ("gpipe", "4", "1x1x1x1p4"),
    ]
    for row in rows:
        low, time_s, high = (float(row[f"in_stages_s{end}"]) for end in ("_low", "", "_high"))
        assert 0 < low <= time_s <= high <= float(row["time_s"]) * 1.5
    assert len(re.findall("<h3>Time over stages</h3>", page.read_text())) == 1


def test_a_job_without_the_optimizer_is_a_setting_of_its_own(tmp_path: Path) -> None:
    names = ("1f1b", "gpipe")
    plain = pipeline(grid="1x1x1x1p4", schedules=names)
    bare = [without_optimizer(run) for run in pipeline(grid="1x1x1x1p4", schedules=names, job=10)]
    save([*plain, *bare], tmp_path)
    found = compared(frames(load([tmp_path]).runs))
    assert sorted(one.first["tuning"] for one in found) == ["", "no optimizer"]
    settings = rows_of(site_of([*plain, *bare], tmp_path / "page"), "settings")
    assert sorted(row["tuning"] for row in settings) == ["", "no optimizer"]


def test_one_number_of_stages_is_no_line(page: Path) -> None:
    assert not [*(page.parent / "data").glob("pipeline-*-stages.csv")]
    some = pd.DataFrame({"stages": [2, 4], "grid": "a", "schedule": "1f1b", "in_stages_s": [1.0, 2.0], "time_s": 3.0})
    assert len(fastest_grids(some, "1f1b")) == 2
    assert fastest_grids(some.assign(in_stages_s=[1.0, float("nan")]), "1f1b").empty


def thrice(times: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(3 * time_s for time_s in of_round) for of_round in times)


def slower(run: Result) -> Result:
    """The same job, in which all took three times as long."""
    assert run.contest is not None
    sides = []
    for side in run.sides(ScheduleSide):
        stages = tuple(
            stage.model_copy(update={"idle_s": thrice(stage.idle_s), "work_s": thrice(stage.work_s)})
            for stage in side.stages
        )
        times = {"rounds_s": thrice(side.rounds_s), "time_per_iteration_s": 3 * side.time_per_iteration_s}
        sides.append(side.model_copy(update=times | {"stages": stages}))
    return run.model_copy(update={"contest": run.contest.model_copy(update={"sides": tuple(sides)})})


def without_optimizer(run: Result) -> Result:
    return run.model_copy(update={"config": run.config | {"optimizer": "none"}})
