"""The page of optimisations: what each gains over those before it, its verdict, and the published gains beside."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from reading import built, in_order, table, words
from sample_results import save, train

from engine.published.claims import figures
from engine.result.metrics import paired
from engine.result.schema import Result
from engine.result.schema.contest import Contest, OptimisationSide, Ratio
from engine.result.schema.step import Breakdown
from reports.frames.frame import of_loaded
from reports.frames.reproduction import judge_figures
from reports.read.load import load

SETTINGS: dict[str, dict[str, Any]] = {
    "baseline": {"grid": "8x1x4x256", "tuned": False, "overlap": "none"},
    "grid": {"grid": "2x1x32x128", "tuned": False, "overlap": "none"},
    "tuning": {"grid": "2x1x32x128", "tuned": True, "overlap": "none"},
    "overlap": {"grid": "2x1x32x128", "tuned": True, "overlap": "oar,ors,oag"},
}
SECONDS = {"baseline": 40.0, "grid": 30.0, "tuning": 29.1, "overlap": 23.28}
EXPOSED = {"baseline": 15.0, "grid": 8.0, "tuning": 7.9, "overlap": 2.0}
SLOW = [1.0, 1.02, 0.98, 1.05, 1.0, 0.97]
"""Factors by which each round of all sides is slower."""
SECTION = "gpt-80b-on-8-192-devices-frontier-gpu-bf"


def ratio(mine: Sequence[float], other: Sequence[float]) -> Ratio:
    return Ratio.of(paired([list(zip(mine, other, strict=True))]))


def in_turns(times: Mapping[str, Sequence[float]], *, failure: str | None = None, **known: Any) -> Result:
    """One job whose sides took so long in each round, one step a round."""
    shape = {"ranks": 8192, "model": "gpt-80b", "grid": "8x1x4x256", "study": "optimisations"} | known
    run = train(failure=failure, grid_is="found by par4d plan", **shape)
    empty = {"iterations": (), "summary": None, "breakdown": None, "timeline": None, "collectives": ()}
    run = run.model_copy(update={"kind": "optimisations", **empty})
    if failure:
        return run
    sides: list[OptimisationSide] = []
    names = list(times)
    for former, name in zip([None, *names], names, strict=False):
        mine = times[name]
        exposed_s = EXPOSED[name] * mean(mine) / SECONDS[name]
        side = OptimisationSide(
            name=name,
            rounds_s=tuple((time_s,) for time_s in mine),
            time_per_iteration_s=mean(mine),
            over_base=None if former is None else ratio(mine, times[names[0]]),
            over_former=None if former is None else ratio(mine, times[former]),
            micro_batch=2,
            breakdown=Breakdown(compute_s=mean(mine) - exposed_s, collectives_s=exposed_s),
            **SETTINGS[name],
        )
        sides.append(side)
    return run.model_copy(update={"contest": Contest(base=names[0], sides=tuple(sides))})


def rounds(rounds: int = 6, **slower: float) -> dict[str, list[float]]:
    """Seconds of each round by side. slower: factors of sides."""
    return {name: [SECONDS[name] * slower.get(name, 1.0) * by for by in SLOW[:rounds]] for name in SECONDS}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lost = in_turns({}, failure="rank 77 was lost", job=5)
    return built(tmp_path_factory.mktemp("page"), [in_turns(rounds()), lost]) / "optimisations.html"


def rows(page: Path, name: str = f"{SECTION}-sides") -> dict[str, dict[str, str]]:
    return {row["side"]: row for row in table(page, f"optimisations-{name}")}


def test_each_step_has_its_gain_over_the_one_before_with_its_interval_and_the_published_one(page: Path) -> None:
    found = rows(page)
    assert list(found) == list(SETTINGS)
    gains = {"grid": 0.25, "tuning": 0.03, "overlap": 0.2}
    for name, gain in gains.items():
        ends = [float(found[name][key]) for key in ("saved", "saved_low", "saved_high")]
        assert ends == pytest.approx([gain] * 3)
        assert found[name]["verdict"] == "faster"
    assert [found[name]["published"] for name in found] == ["", "13 to 45 %", "2 to 4 %", "up to 22 %"]
    assert (found["baseline"]["saved"], found["baseline"]["verdict"]) == ("", "")
    assert float(found["overlap"]["ratio"]) == pytest.approx(23.28 / 40)
    html = page.read_text()
    assert in_order(words(html), "25.0 %", "faster", "published 13 to 45 %")
    assert "found by par4d plan" in html


def test_bars_are_parted_into_compute_and_exposed_communication(page: Path) -> None:
    for name, row in rows(page, f"{SECTION}-steps").items():
        parts = [float(row[key]) for key in ("compute_s", "collectives_s")]
        assert sum(parts) == pytest.approx(float(row["time_s"]))
        assert parts[1] == pytest.approx(EXPOSED[name] * mean(SLOW))
    drawn = re.findall(r"<h3>A step by optimisation</h3>.*?</figure>", page.read_text(), re.DOTALL)[0]
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    bars = ("baseline", "+ grid", "+ tuning", "+ overlap", "25.0 %", "3.0 %", "20.0 %", "up to 22 %")
    assert [labels.count(label) for label in bars] == [1] * len(bars)


def test_the_first_page_says_what_all_of_them_save_and_the_page_which_job_failed(page: Path) -> None:
    assert in_order((page.parent / "index.html").read_text(), "41.8 %", "1 setting")
    (row,) = table(page, "optimisations-settings")
    assert float(row["total"]) == pytest.approx(1 - 23.28 / 40)
    assert "rank 77 was lost" in page.read_text()


def test_a_step_that_is_slower_is_judged_so_and_what_may_be_chance_is_undecided(tmp_path: Path) -> None:
    planted = rounds(tuning=1.05)
    site = built(tmp_path / "slower", [in_turns(planted)])
    found = rows(site)
    assert [found[name]["verdict"] for name in found] == ["", "faster", "slower", "faster"]
    assert float(found["tuning"]["saved"]) == pytest.approx(1 - 0.97 * 1.05)
    noisy = rounds()
    noisy["tuning"] = [time_s * by for time_s, by in zip(noisy["tuning"], [1.1, 0.9] * 3, strict=True)]
    assert rows(built(tmp_path / "noisy", [in_turns(noisy)]))["tuning"]["verdict"] == "undecided"
    few = rows(built(tmp_path / "few", [in_turns(rounds(5))]))
    assert {row["verdict"] for row in few.values()} == {"", "undecided"}, "five rounds of one job have no interval"
    three = [in_turns(rounds(5), job=job) for job in range(3)]
    assert rows(built(tmp_path / "three", three))["tuning"]["verdict"] == "faster", "three jobs have one"


@pytest.mark.parametrize(("grid_is", "told"), [("found by par4d plan", True), ("fixed by the series", False)])
def test_a_fixed_grid_says_nothing_of_the_performance_model(grid_is: str, told: bool, tmp_path: Path) -> None:
    jobs = [in_turns(rounds(), job=job, system="local") for job in range(2)]
    save([job.model_copy(update={"labels": job.labels | {"grid_is": grid_is}}) for job in jobs], tmp_path)
    (figure,) = [one for one in figures("axonn-sc24") if one.where == "Fig. 7"]
    (judged,) = judge_figures(of_loaded(load([tmp_path])), [figure])
    found = {part.claim.name for part in judged.parts if any(one.machine == "local" for one in part.findings)}
    assert ("grid of the performance model" in found) == told
    assert "tuned products" in found


POINTS = {512: "gpt-5b", 1024: "gpt-10b", 2048: "gpt-20b", 4096: "gpt-40b", 8192: "gpt-80b"}


@pytest.mark.parametrize(
    ("sizes", "smallest", "expected"),
    [
        (tuple(POINTS), 1.0, "reproduces"),
        (tuple(POINTS), 1.3, "can't tell"),
        ((8192,), 1.0, "can't tell"),
        ((512, 1024, 2048, 4096), 1.0, "can't tell"),
        ((), 1.0, "not run here"),
    ],
)
def test_a_range_of_sizes_takes_each_of_them(
    sizes: tuple[int, ...], smallest: float, expected: str, tmp_path: Path
) -> None:
    """Published: 13 to 45 % on 512 to 8192 GCDs. Planted: one size alone, one that is missing, and 2.5 % on 512."""
    jobs = [
        in_turns(
            rounds(**dict.fromkeys(("grid", "tuning", "overlap"), smallest if ranks == 512 else 1.0)),
            job=10 * place + number,
            ranks=ranks,
            model=POINTS[ranks],
            grid=f"8x1x4x{ranks // 32}",
            series="axonn-sc24",
        )
        for place, ranks in enumerate(sizes)
        for number in range(2)
    ]
    save(jobs, tmp_path)
    (figure,) = [one for one in figures("axonn-sc24") if one.where == "Fig. 7"]
    (judged,) = judge_figures(of_loaded(load([tmp_path])), [figure])
    (part,) = (one for one in judged.parts if one.claim.name == "grid of the performance model")
    assert part.overall.verdict == expected


def test_jobs_on_other_grids_are_other_settings_and_without_any_the_page_says_what_to_run(tmp_path: Path) -> None:
    other = in_turns(rounds(), job=1)
    assert other.contest is not None
    sides = tuple(side.model_copy(update={"grid": "4x1x16x128"}) for side in other.contest.sides[1:])
    moved = other.model_copy(update={"contest": Contest(base="baseline", sides=(other.contest.sides[0], *sides))})
    site = built(tmp_path / "two", [in_turns(rounds()), moved])
    assert [row["model"] for row in table(site, "optimisations-settings")] == ["gpt-80b"] * 2
    empty = built(tmp_path / "none") / "optimisations.html"
    assert "suites/optimisations.py" in empty.read_text()
    only = built(tmp_path / "lost", [in_turns({}, failure="no memory")]) / "optimisations.html"
    assert "no memory" in only.read_text()
    assert not re.search(r"\bnan\b", words(only.read_text()), re.IGNORECASE)
