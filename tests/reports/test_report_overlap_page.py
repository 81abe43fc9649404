"""The page of the overlap study: what a reader sees of it."""

import csv
import re
from pathlib import Path

import pytest
from sample_results import ALL, ablation, save, train
from sample_steps import simulate
from test_report_overlap import LADDER, timed

from reports.site import build


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
