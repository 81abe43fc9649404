"""The strong-scaling study: ideal time, parallel efficiency, time to solution, and the published points beside them."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from reading import built
from sample_results import strong, train

from engine.result.schema import Result
from reports.frames.frame import frames
from reports.frames.points import points
from reports.pages.strong_scaling import BY, with_solution
from reports.read import published
from reports.read.load import Run
from reports.read.peaks import with_peaks
from reports.text import DAY, duration, tokens


def table(*results: Result) -> pd.DataFrame:
    runs = frames([Run(result, f"{number}.json") for number, result in enumerate(results)]).runs
    return with_solution(points(with_peaks(runs), BY))


def one(ranks: int, time_s: float, *, model: str = "gpt-80b", budget: str = "2e+12", **changes: Any) -> Result:
    labels = {"token_budget": budget} if budget else {}
    return train(ranks=ranks, model=model, time_s=time_s, study="strong_scaling", **(labels | changes))


def page_of(results: list[Result], folder: Path) -> Path:
    return built(folder, results) / "strong_scaling.html"


def data(page: Path, ends: str) -> list[dict[str, str]]:
    (path,) = (page.parent / "data").glob(f"strong_scaling-*-{ends}.csv")
    return list(csv.DictReader(path.open()))


def figure(page: Path, title: str) -> str:
    return re.findall(rf"<h3>{title}</h3>.*?</figure>", page.read_text(), re.DOTALL)[0]


def test_parallel_efficiency_is_relative_to_the_smallest_point_of_the_same_model() -> None:
    rows = table(one(128, 100.0), one(256, 62.5, job=1), one(512, 90.0, model="gpt-640b", job=2))
    assert rows.set_index(["model", "ranks"])["efficiency"].to_dict() == pytest.approx(
        {("gpt-80b", 128): 1.0, ("gpt-80b", 256): 0.8, ("gpt-640b", 512): 1.0}
    )


def test_time_to_solution_is_the_budget_over_the_tokens_of_a_batch_times_its_time() -> None:
    row = table(one(8192, 18.482)).iloc[0]
    assert row["solution_s"] / DAY == pytest.approx(25.5, rel=1e-3)  # axonn-sc24 VII-C and Table III agree


@pytest.mark.parametrize("budget", ["", "many", "-1", "inf", "nan", "0"])
def test_without_a_number_of_tokens_there_is_no_time_to_solution(budget: str) -> None:
    assert math.isnan(table(one(128, 10.0, budget=budget)).iloc[0]["solution_s"])


def test_the_token_budget_is_no_variant_of_the_study() -> None:
    runs = frames([Run(one(128, 10.0), "a.json")]).runs
    assert (runs["variant"].iloc[0], runs["token_budget"].iloc[0]) == ("", pytest.approx(2e12))


def test_the_published_times_stand_beside_ours_on_as_many_devices(tmp_path: Path) -> None:
    page = page_of(strong(), tmp_path)
    rows = data(page, "against")
    assert [(int(row["ranks"]), float(row["solution_s_published"]) / DAY) for row in rows] == [
        (128, pytest.approx(50 * 365.25 / 12)),
        (8192, 25.5),
    ]
    for row in rows:
        faster = float(row["solution_s_published"]) / float(row["solution_s"])
        assert 0.5 < faster < 2
        assert float(row["faster"]) == pytest.approx(faster)
    drawn = figure(page, "Time to solution")
    assert ">axonn-sc24</text>" in drawn
    assert "2 trillion" in drawn
    assert "axonn-sc24 section VII-C" in drawn


def test_published_times_of_another_model_system_or_budget_are_not_compared(tmp_path: Path) -> None:
    for number, other in enumerate(({"model": "gpt-40b"}, {"system": "perlmutter"}, {"token_budget": "3e+11"})):
        page = page_of(strong(points=3, **other), tmp_path / str(number))  # type: ignore[arg-type]
        assert ">axonn-sc24</text>" not in figure(page, "Time to solution")


def test_a_published_batch_time_is_drawn_where_model_and_batch_are_the_same(tmp_path: Path) -> None:
    known = {"system": "perlmutter", "first": 64, "points": 5, "series": "par4d"}
    same = page_of(strong(sequences=2048, **known), tmp_path / "same")  # type: ignore[arg-type]
    other = page_of(strong(sequences=4096, **known), tmp_path / "other")  # type: ignore[arg-type]
    assert "par4d Table III; implied" in figure(same, "Time per batch")
    assert ">par4d</text>" in figure(same, "Time per batch")
    assert ">par4d</text>" not in figure(other, "Time per batch")


def test_where_the_batch_grows_with_the_devices_the_time_is_per_million_tokens(tmp_path: Path) -> None:
    page = page_of([one(48 * 2**n, 5000.0, sequences=4096 * 2**n, job=n) for n in range(3)], tmp_path)
    rows = [row for row in data(page, "time") if row["origin"] == "measured"]
    assert "Time per million tokens" in page.read_text()
    assert [float(row["per_million_s"]) for row in rows] == pytest.approx(
        [5000 / 4096 / 2048 * 1e6 / 2**n for n in range(3)]
    )
    assert [float(row["efficiency"]) for row in data(page, "points")] == pytest.approx([1.0, 1.0, 1.0])


def test_a_published_time_is_per_million_tokens_too_where_ours_is(tmp_path: Path) -> None:
    page = page_of([one(8192, 18.0), one(16384, 18.0, sequences=16384, job=1)], tmp_path)
    (theirs,) = (row for row in data(page, "time") if row["origin"] == "axonn-sc24")
    assert float(theirs["per_million_s"]) == pytest.approx(18.4831 / 16.777216)


def test_a_failed_point_has_its_reason_and_no_time_to_solution(tmp_path: Path) -> None:
    page = page_of([one(128, 1000.0), one(256, 1.0, failure="a rank was lost", job=1)], tmp_path)
    row = data(page, "points")[1]
    assert (row["ranks"], row["solution_s"], row["efficiency"]) == ("256", "", "")
    assert "a rank was lost" in page.read_text()


def test_efficiencies_of_the_published_times_are_computed_and_not_taken_from_the_text() -> None:
    rows = published.time_to_solution().set_index(["model", "ranks"])["efficiency"]
    assert rows["GPT-80B", 8192] == pytest.approx(0.93, abs=0.01)
    assert rows["GPT-640B", 8192] == pytest.approx(0.70, abs=0.01)  # the text says more than 90 %


def test_published_gains_over_other_frameworks_are_listed_with_their_source(tmp_path: Path) -> None:
    html = page_of([one(128, 1000.0)], tmp_path).read_text()
    for words in ("par4d section VII-B", "axonn-ipdps22 section VII-C", "11.47 %", "DeepSpeed-3D", "Megatron-LM"):
        assert words in html


def test_long_times_and_many_tokens_are_written_as_people_say_them() -> None:
    assert [duration(value) for value in (90.0, 5400.0, 25.5 * DAY, 120 * DAY, 14 * 365.25 * DAY)] == [
        *("90.00 s", "1.50 hours", "25.5 days", "3.94 months", "14.0 years")
    ]
    assert [tokens(value) for value in (2e12, 3e11, 1.2e8, 512.0)] == [
        *("2 trillion tokens", "300 billion tokens", "120 million tokens", "512 tokens")
    ]
