"""Weak scaling in days of a whole training (axonn-ipdps22 Fig. 9), beside what the paper prints."""

from pathlib import Path

import pytest
from reading import built, table
from sample_results import train

from engine.result.schema import Result
from reports.read import published

TIMES_S = {48: ("gpt-12b", 262.0), 96: ("gpt-24b", 255.0), 384: ("gpt-100b", 288.0)}


def series(budget: str = "3e+11", sequences: int = 16384) -> list[Result]:
    labels = {"system": "summit", "series": "axonn-ipdps22"} | ({"token_budget": budget} if budget else {})
    shared = labels | {"sequences": sequences, "dtype": "fp16"}
    return [
        train(ranks=ranks, model=model, grid=f"1x1x1x{ranks}", time_s=time_s, job=ranks, **shared)  # type: ignore[arg-type]
        for ranks, (model, time_s) in TIMES_S.items()
    ]


def page_of(results: list[Result], folder: Path) -> Path:
    return built(folder, results) / "weak_scaling.html"


def rows_of(page: Path, ends: str) -> list[dict[str, str]]:
    (path,) = (page.parent / "data").glob(f"weak_scaling-summit-*-{ends}.csv")
    return table(page, path.stem)


def ends_of(words: str) -> tuple[float, float]:
    """The ends of a range such as 141 to 152 days."""
    low, _, high, _ = words.split()
    return float(low), float(high)


def test_a_series_with_a_number_of_tokens_is_drawn_in_days(tmp_path: Path) -> None:
    page = page_of(series(), tmp_path)
    days = {row["ranks"]: float(row["solution_days"]) for row in rows_of(page, "solution")}
    batch_tokens = 16384 * 512
    wanted = {str(n): 3e11 / batch_tokens * time_s / 86400 for n, (_, time_s) in TIMES_S.items()}
    assert days == pytest.approx(wanted, rel=1e-3)
    assert all(float(row["solution_s"]) > 1e6 for row in rows_of(page, "points"))


def test_days_stand_beside_those_of_the_published_times_and_what_is_saved(tmp_path: Path) -> None:
    page = page_of(series(), tmp_path)
    rows = {(row["model"], row["framework"]): row for row in rows_of(page, "ranges")}
    assert len(rows) == 3 * 3
    row = rows["gpt-100b", "DeepSpeed"]
    low, high = ends_of(row["days"])
    assert low == pytest.approx(3e11 / (16384 * 512) * 340.22 / 86400, rel=0.01)
    ours = float(row["days_ours"])
    assert ends_of(row["saved"]) == pytest.approx((low - ours, high - ours), abs=0.5)
    # the paper's own range of times saves what its text says over the next best
    axonn, others = ends_of(rows["gpt-12b", "AxoNN"]["days"]), ends_of(rows["gpt-12b", "DeepSpeed"]["days"])
    least, most = others[0] - axonn[1], others[1] - axonn[0]
    printed = published.days_saved().set_index("source").loc["axonn-ipdps22 abstract"]
    assert least < printed["value"] / 86400 < printed["highest"] / 86400 < most
    said = page.read_text()
    assert "22 to 37 days saved" in said
    assert "22 days saved by AxoNN over DeepSpeed" in said


@pytest.mark.parametrize("given", [{"budget": ""}, {"sequences": 8192}])
def test_without_the_tokens_or_with_another_batch_there_are_no_days_to_compare(
    given: dict[str, str], tmp_path: Path
) -> None:
    page = page_of(series(**given), tmp_path)  # type: ignore[arg-type]
    drawn = [*(page.parent / "data").glob("weak_scaling-summit-*-solution.csv")]
    assert len(drawn) == ("budget" not in given)
    assert "22 to 37 days saved" not in page.read_text()
