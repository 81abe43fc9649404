"""The overlap study: what counts as a variant, what it gains, what could be hidden, and the page that says so."""

import csv
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sample_results import ALL, ablation, save, train
from sample_steps import simulate

from engine.result.schema import AxisTime, Breakdown, Phase, Result
from reports import published
from reports.ablation import by_axis, flags, fullest, in_order, most_exposed, with_gains
from reports.frame import Frames, frames
from reports.load import Run
from reports.peaks import with_peaks
from reports.points import points
from reports.site import build

LADDER = ["none", "oar", "oar,ors", "oar,ors,oag", "oar,ors,oag,cache=4", "oar,ors,oag,cache=4,data"]


def framed(*results: Result) -> Frames:
    everything = frames([Run(result, f"{number}.json") for number, result in enumerate(results)])
    return everything.of(with_peaks(everything.runs))


def table(*results: Result) -> pd.DataFrame:
    return with_gains(points(framed(*results).runs))


def timed(overlap: str, time_s: float, **changes: Any) -> Result:
    """A run of the study that took so long, with nothing told about its phases."""
    return train(overlap=overlap, time_s=time_s, study="overlap_ablation", **changes)


def phased(run: Result, **phases: tuple[float, float, float, float]) -> Result:
    """The run with phases of so much compute, blocking waits, other waits and flight behind compute."""
    parts = tuple(
        Phase(name=name, compute_s=compute, blocking_s=blocking, exposed_s=exposed, hidden_s=hidden)
        for name, (compute, blocking, exposed, hidden) in phases.items()
    )
    told = Breakdown(compute_s=1.0, collectives_s=1.0, phases=parts)
    return run.model_copy(update={"breakdown": told})


def test_two_overlaps_of_one_point_are_never_averaged() -> None:
    both = points(framed(timed("none", 10.0), timed("oar", 8.0, job=1)).runs)
    assert dict(zip(both["overlap"], both["time_s"], strict=True)) == {"none": 10.0, "oar": 8.0}


@pytest.mark.parametrize(
    ("overlap", "option", "told_apart"),
    [
        ("oag", {"prefetch_depth": 1}, True),
        ("ors", {"prefetch_depth": 1}, False),
        ("ors", {"reduce_window": 1}, True),
        ("cache=auto", {"cache_bytes": 1e9}, True),
        ("cache=4", {"cache_bytes": 1e9}, False),
        ("data", {"bucket_bytes": 1e6}, True),
        ("none", {"prefetch_depth": 1, "reduce_window": 1, "bucket_bytes": 1.0}, False),
    ],
)
def test_jobs_that_differ_in_an_option_are_told_apart_where_it_changes_what_ran(
    overlap: str, option: dict[str, Any], told_apart: bool
) -> None:
    pair = points(framed(timed(overlap, 1.0), timed(overlap, 2.0, job=1, tuning=option)).runs)
    assert len(pair) == (2 if told_apart else 1)


def test_version_1_results_stay_readable_and_have_no_overlap_phases_or_gathered_bytes() -> None:
    everything = framed(train(version=1))
    run = everything.runs.iloc[0]
    assert (run["overlap"], run["tuning"]) == ("", "")
    assert run["collectives_s"] > 0
    for measure in ("blocking_s", "exposed_s", "hideable_s", "hidden_s", "prefetch_bytes", "cache_bytes"):
        assert math.isnan(run[measure])
    assert everything.phases.empty
    assert everything.axes.empty
    assert everything.timelines == {}


def test_phases_axes_and_timelines_follow_their_runs() -> None:
    everything = framed(*ablation(jobs=1, overlaps=["none", ALL]))
    second = everything.of(everything.runs.iloc[[1]])
    assert set(second.phases["run"]) == set(second.axes["run"]) == set(second.timelines) == {1}
    assert second.phases["name"].tolist() == ["forward", "backward", "reduce", "optimizer"]
    run = everything.runs.iloc[0]
    first = everything.phases[everything.phases["run"] == 0]
    assert first[["compute_s", "blocking_s", "exposed_s"]].sum().sum() == pytest.approx(run["time_s"])
    assert first["exposed_s"].sum() == pytest.approx(run["exposed_s"])


def test_what_could_be_hidden_is_the_smaller_of_compute_and_of_waits_with_flight_behind_compute() -> None:
    run = framed(phased(timed("oar", 10.0), forward=(3.0, 0.5, 1.0, 0.5), backward=(0.75, 9.0, 2.0, 0.5))).runs.iloc[0]
    assert run["hideable_s"] == pytest.approx(1.5 + 0.75)
    assert run["hidden_s"] == pytest.approx(0.5 + 0.5)
    assert (run["blocking_s"], run["exposed_s"]) == pytest.approx((9.5, 3.0))


def test_each_phase_hides_for_itself() -> None:
    after = {"backward": (1.0, 0.0, 0.0, 3.0), "reduce": (2.5, 0.0, 0.0, 0.0), "optimizer": (0.5, 0.0, 2.0, 0.0)}
    run = framed(phased(timed("data", 10.0), forward=(9.0, 0.0, 0.25, 0.0), **after)).runs.iloc[0]
    assert run["hideable_s"] == pytest.approx(0.25 + 1.0 + 0.0 + 0.5)
    assert run["hidden_s"] == pytest.approx(1.0)


def test_no_more_is_hidden_than_could_be_where_several_collectives_fly_at_once() -> None:
    rows = table(phased(timed("oar,ors", 10.0), forward=(2.0, 0.0, 0.0, 5.0), backward=(4.0, 0.0, 1.0, 3.0)))
    assert rows["hideable_s"].iloc[0] == pytest.approx(2.0 + 4.0)
    assert rows["hidden"].iloc[0] == pytest.approx((2.0 + 3.0) / 6.0)


def test_every_variant_tells_what_it_hides_without_a_run_to_compare_it_with() -> None:
    rows = table(
        phased(timed("none", 10.0), forward=(5.0, 1.0, 4.0, 0.0)),
        phased(timed("oar", 7.0, job=1), forward=(5.0, 1.0, 1.0, 3.0)),
        phased(timed("oar", 7.0, job=2, grid="4x2x8x8"), forward=(5.0, 1.0, 3.0, 1.0)),
    ).set_index(["overlap", "grid"])
    assert rows.loc[("none", "8x1x8x8"), "hidden"] == 0.0
    assert rows.loc[("oar", "8x1x8x8"), "hidden"] == pytest.approx(0.75)
    assert rows.loc[("oar", "4x2x8x8"), "hidden"] == pytest.approx(0.25)
    assert rows["gain_none"].dropna().tolist() == pytest.approx([0.3])


@pytest.mark.parametrize("phases", [{}, {"forward": (5.0, 1.0, 0.0, 0.0)}])
def test_nothing_to_hide_is_no_percentage(phases: dict[str, Any]) -> None:
    assert math.isnan(table(phased(timed("oar", 7.0), **phases))["hidden"].iloc[0])


@pytest.mark.parametrize("change", [{"grid": "4x2x8x8"}, {"sequences": 4096}, {"system": "alps"}, {"recompute": False}])
def test_a_variant_is_compared_with_no_overlap_of_its_own_layout_only(change: dict[str, Any]) -> None:
    rows = table(timed("none", 10.0), timed("oar", 7.0, job=1, **change))
    assert rows["gain_none"].isna().all()


def test_gains_are_parts_of_the_time_of_the_medians() -> None:
    runs = [timed("none", t, job=n) for n, t in enumerate((10.0, 99.0, 9.0))]
    runs += [timed("oar", t, job=10 + n) for n, t in enumerate((8.0, 1.0, 9.0))]
    ordered = in_order(table(*runs))
    assert ordered["gain_over"].iloc[1] == pytest.approx(0.2)


def test_variants_stand_in_the_papers_order_then_each_flag_alone_then_others() -> None:
    found = [*LADDER, "ors", "oag", "cache=4", "data", "oar,oag"]
    ordered = in_order(table(*(timed(overlap, 20.0 - n, job=n) for n, overlap in enumerate(reversed(found)))))
    ladder = ordered[ordered["place"] == "ladder"]
    assert ladder["overlap"].tolist() == LADDER
    assert ladder["label"].tolist() == ["none", "+ oar", "+ ors", "+ oag", "+ cache=4", "+ data"]
    assert ladder["over"].tolist() == ["", *LADDER[:-1]]
    assert ordered[ordered["place"] == "alone"]["overlap"].tolist() == ["oar", "ors", "oag", "cache=4", "data"]
    assert ordered[ordered["place"] == "other"]["overlap"].tolist() == ["oar,oag"]


def test_a_step_that_failed_is_kept_and_the_next_is_compared_with_the_one_before_it() -> None:
    runs = [timed("none", 10.0), timed("oar", 1.0, failure="killed", job=1), timed("oar,ors", 8.0, job=2)]
    ordered = in_order(table(*runs))
    assert ordered[ordered["place"] == "ladder"]["label"].tolist() == ["none", "+ oar", "+ oar ors"]
    assert ordered["over"].tolist()[:3] == ["", "none", "none"]
    assert ordered["gain_over"].iloc[2] == pytest.approx(0.2)
    assert math.isnan(ordered["gain_over"].iloc[1])


def test_without_a_cache_on_the_way_data_follows_oag() -> None:
    ordered = in_order(
        table(*(timed(o, 9.0, job=n) for n, o in enumerate(["none", "oar,ors,oag", "oar,ors,oag,data"])))
    )
    assert ordered["label"].tolist() == ["none", "+ oar ors oag", "+ data"]


def test_of_variants_with_the_same_flags_the_fastest_stands_for_them() -> None:
    runs = [timed("none", 10.0), timed("oag", 9.0, job=1), timed("oag", 8.0, job=2, tuning={"prefetch_depth": 1})]
    ordered = in_order(table(*runs))
    assert ordered["label"].tolist() == ["none", "oag (prefetch_depth=1)"]


def test_the_fullest_variant_is_the_last_step_that_was_measured() -> None:
    runs = [timed(overlap, 10.0 - n, job=n) for n, overlap in enumerate([*LADDER[:4], "cache=4", "oar,oag"])]
    runs.append(timed(ALL, 1.0, failure="killed", job=9))
    runs += [timed("none", 5.0, grid="4x2x8x8", job=20), timed(ALL, 4.0, grid="4x2x8x8", job=21)]
    best = fullest(table(*runs)).set_index("grid")["overlap"].to_dict()
    assert best == {"8x1x8x8": "oar,ors,oag", "4x2x8x8": ALL}


@pytest.mark.parametrize("overlap", ["", "everything", "oar,oops", "=1+1", "oar,"])
def test_a_text_that_is_no_overlap_is_no_variant(overlap: str) -> None:
    assert flags(overlap) is None
    assert in_order(table(timed("none", 1.0), timed(overlap, 1.0, job=1)))["overlap"].tolist() == ["none"]


def test_times_by_axis_are_medians_over_the_jobs_of_a_point() -> None:
    def exposed(job: int, **seconds: float) -> Result:
        axes = tuple(AxisTime(axis=axis, exposed_s=s, hidden_s=10 * s) for axis, s in seconds.items())
        run = timed("oar", 9.0, job=job)
        return run.model_copy(update={"breakdown": Breakdown(compute_s=1.0, collectives_s=1.0, axes=axes)})

    everything = framed(
        exposed(0, z=1.0, x=3.0), exposed(1, z=2.0, x=1.0), exposed(2, z=6.0, x=1.5), timed("none", 9.0)
    )
    rows, axes = by_axis(points(everything.runs), everything)
    assert axes == ["x", "z"]
    row = rows.set_index("overlap").loc["oar"]
    assert (row["exposed_x"], row["exposed_z"], row["hidden_x"]) == (1.5, 2.0, 15.0)
    assert most_exposed(row, axes) == ("z", 2.0)
    assert most_exposed(rows.set_index("overlap").loc["none"], axes) is None


def test_published_gains_compose_to_the_total_that_the_paper_prints() -> None:
    gains = published.gains()
    steps = gains[(gains["paper"] == "par4d") & (gains["study"] == "overlap")]
    total = steps[(steps["over"] == "none") & (steps["gained"] != "oar")]["value"].iloc[0]
    left = math.prod(1 - value for value in steps.drop(steps.index[steps["value"] == total])["value"])
    assert 1 - left == pytest.approx(total, abs=0.02)  # 35.6 % against 34 %, each printed to 1 %


def test_the_sample_step_is_half_exposed_without_overlap_and_all_of_it_is_told() -> None:
    step = simulate("none")
    assert step.length == pytest.approx(2.5, rel=0.02)
    assert len([span for span in step.spans if span.kind == "collective"]) == 96
    told = step.breakdown(step.length)
    assert told.compute_s + told.collectives_s == pytest.approx(step.length)
    assert told.collectives_s / step.length == pytest.approx(0.5, abs=0.01)
    assert sum(axis.exposed_s for axis in told.axes) == pytest.approx(told.collectives_s)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one layout on a machine and in a model that a paper has gains of, and of one on another."""
    folder = tmp_path_factory.mktemp("overlap")
    known = {"system": "perlmutter", "model": "gpt-20b", "partition": "gpu", "dtype": "bf16", "cache": "28"}
    runs = [*ablation(grid="2x2x4x1", **known), *ablation(grid="2x2x1x2", jobs=1, job=300, overlaps=["none", ALL])]
    lost = {"partition": "gpu", "sequences": 16, "system": "perlmutter", "study": "overlap_ablation", "grid": "2x2x4x1"}
    runs.append(train(ranks=16, model="gpt-20b", overlap="oag", failure="rank 3 was killed", job=900, **lost))
    save(runs, folder / "r")
    build([folder / "r"], folder / "site")
    return folder / "site" / "overlap.html"


def rows_of(page: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((page.parent / "data" / f"overlap-{name}.csv").open()))


PERLMUTTER = "gpt-20b-on-2x2x4x1-16-devices-perlmutter"


def figure(page: Path, title: str, section: int = 0) -> str:
    return re.findall(rf"<h3>{title}</h3>.*?</figure>", page.read_text(), re.DOTALL)[section]


def test_the_published_gains_stand_beside_ours_at_the_same_step(page: Path) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", figure(page, "A step by overlap"))
    for words in ("none", "+ oar", "+ ors", "+ oag", "+ cache=28", "5 %", "8 %", "19 %", "9 %", "34 %"):
        assert texts.count(words) == 1, words
    assert texts.count("par4d") == 2
    rows = {row["overlap"]: row for row in rows_of(page, f"{PERLMUTTER}-variants") if row["place"] == "ladder"}
    ours = 1 - float(rows["oar"]["time_s"]) / float(rows["none"]["time_s"])
    assert float(rows["oar"]["gain_over"]) == pytest.approx(ours)
    assert f"{100 * ours:.1f} %" in texts


def test_the_published_gain_of_another_paper_stands_beside_its_own_system(tmp_path: Path) -> None:
    runs = [timed(overlap, 10.0 - n, ranks=8192, model="gpt-80b", job=n) for n, overlap in enumerate(LADDER[:4])]
    save(runs, tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    drawn = figure(tmp_path / "site" / "overlap.html", "A step by overlap")
    assert ">18.69 %</text>" in drawn
    assert ">axonn-sc24</text>" in drawn
    assert ">par4d</text>" not in drawn
    assert "axonn-sc24 section V, GPT-80B on 8192 devices of Frontier" in drawn


def test_the_facts_are_the_speed_up_what_is_hidden_and_the_axis_that_stays_exposed(page: Path) -> None:
    facts = page.read_text().split(f'id="series-{PERLMUTTER}')[1].split("</dl>")[0]
    rows = {row["hides"]: row for row in rows_of(page, f"{PERLMUTTER}-details")}
    none, full = rows["none"], rows["oar,ors,oag,cache=28"]
    assert f">{float(none['time_s']) / float(full['time_s']):.2f}x</dd>" in facts
    assert f">{100 * float(full['hidden']):.1f} %</dd>" in facts
    assert 0.0 <= float(none["hidden"]) < 0.01
    assert 0.9 < float(full["hidden"]) <= 1.0
    waits = {axis: float(full[f"exposed_{axis}"]) for axis in "xyz"}
    assert f'>stays most exposed</dt><dd class="value">{max(waits, key=lambda axis: waits[axis])}</dd>' in facts


def test_the_table_of_variants_has_times_axes_memory_and_jobs(page: Path) -> None:
    rows = {row["hides"]: row for row in rows_of(page, f"{PERLMUTTER}-details")}
    assert [row["share"] for row in rows.values()] == ["3", "3", "3 of 4", "3", "3", "3", "3", "3"]
    full = rows["oar,ors,oag,cache=28"]
    assert float(full["hidden_z"]) > float(full["exposed_z"]) > 0
    assert float(full["prefetch_bytes"]) > 0
    assert float(full["cached_blocks"]) == 4
    assert float(rows["none"]["cache_bytes"]) == 0
    assert "rank 3 was killed" in page.read_text()


def test_axes_that_the_layout_has_not_are_left_out_of_its_table(page: Path) -> None:
    assert "exposed_data" not in rows_of(page, f"{PERLMUTTER}-details")[0]
    assert "exposed_data" in rows_of(page, "gpt-local-4-on-2x2x1x2-8-devices-vcluste-details")[0]


def test_every_layout_is_in_one_table_with_its_fullest_variant(page: Path) -> None:
    rows = rows_of(page, "layouts")
    assert [row["grid"] for row in rows] == ["2x2x4x1", "2x2x1x2"]
    assert [row["hides"] for row in rows] == ["oar,ors,oag,cache=28", "all"]


def test_a_run_without_its_baseline_says_so_instead_of_a_gain(tmp_path: Path) -> None:
    save([timed(ALL, 8.0)], tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    html = (tmp_path / "site" / "overlap.html").read_text()
    assert "no run without overlap" in html
    assert "phases were not told apart" in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)


def test_a_layout_whose_jobs_all_failed_says_so(tmp_path: Path) -> None:
    save([timed("none", 8.0, failure="out of memory")], tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    html = (tmp_path / "site" / "overlap.html").read_text()
    assert "Not measured: no job of this layout ended well." in html
    assert "out of memory" in html


def test_results_without_phases_show_what_is_exposed_as_not_told_apart(tmp_path: Path) -> None:
    save([timed("none", 10.0), timed("oar", 9.0, job=1)], tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    assert "exposed, not told apart" in figure(tmp_path / "site" / "overlap.html", "A step by overlap")


@pytest.mark.parametrize(("second", "colour"), [(9.9, "muted"), (8.1, "ink")])
def test_a_gain_that_may_be_chance_is_written_in_grey(second: float, colour: str, tmp_path: Path) -> None:
    times = [("none", 10.0), ("none", 9.8), ("oar,ors", second), ("oar,ors", second - 0.2)]
    save([timed(overlap, time_s, job=n) for n, (overlap, time_s) in enumerate(times)], tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    drawn = figure(tmp_path / "site" / "overlap.html", "A step by overlap")
    gains = re.findall(r'style="([^"]*)"[^>]*>([\d.]+ %)</text>', drawn)
    assert len(gains) == 2
    assert all(f"var(--{colour})" in style for style, _ in gains)


def test_the_newest_job_with_a_timeline_is_drawn(tmp_path: Path) -> None:
    first, second = (simulate("none"), simulate("none"))
    runs = [timed("none", time_s, job=job, step=step) for time_s, job, step in ((3.0, 0, first), (4.0, 5, second))]
    save([*runs, timed("none", 5.0, job=9, step=simulate("none", drawn=False))], tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    (name,) = (
        path.stem.removeprefix("overlap-") for path in (tmp_path / "site" / "data").glob("overlap-*-timeline.csv")
    )
    rows = rows_of(tmp_path / "site" / "overlap.html", name)
    assert max(float(row["end_s"]) for row in rows) == pytest.approx(4.0)


def test_many_layouts_are_all_in_the_table_and_only_some_are_drawn(tmp_path: Path) -> None:
    grids = [f"{x}x{y}x{64 // x // y}x8" for x in (1, 2, 4, 8) for y in (1, 2, 4, 8)]
    save(
        [timed(o, 9.0, grid=g, job=2 * n + m) for n, g in enumerate(grids) for m, o in enumerate(("none", ALL))],
        tmp_path,
    )
    build([tmp_path], tmp_path / "site")
    assert len(rows_of(tmp_path / "site" / "overlap.html", "layouts")) == 16
    assert (tmp_path / "site" / "overlap.html").read_text().count("<svg") == 12


def test_weak_scaling_shows_overlaps_of_the_same_layout_side_by_side(tmp_path: Path) -> None:
    runs = [train(overlap="none", time_s=20.0), train(time_s=15.0, job=1)]
    runs += [train(ranks=8192, model="gpt-80b", time_s=20.0, job=2, overlap="none")]
    runs += [train(ranks=8192, model="gpt-80b", time_s=16.0, job=3, grid="8x4x32x8")]
    save(runs, tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    drawn = figure(tmp_path / "site" / "weak_scaling.html", "Where the time goes")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert [texts.count(words) for words in ("none", "all", "512 · gpt-5b", "8,192 · gpt-80b")] == [1, 2, 1, 1]
    assert [words for words in texts if words.endswith(" %")] == ["25.0 %"]  # the other has another layout
    assert "overlap saves 22 % for GPT-80B on 8,192 devices" in drawn
