"""The page of the overlap study: what a reader sees of it."""

import csv
import re
from pathlib import Path

import pytest
from reading import built, in_order, table
from sample_ablation import OWN_CORES, SHARED, ablation, with_sides
from sample_results import ALL, train
from sample_steps import simulate
from test_report_overlap import LADDER, turns

from engine.result.schema import Result
from engine.result.schema.contest import OverlapSide
from engine.result.schema.step import Bound, Breakdown

PERLMUTTER = "gpt-20b-on-2x2x4x1-16-devices-on-4-nodes"
VCLUSTER = "gpt-local-4-on-2x2x1x2-8-devices-on-4-no"


def site_of(results: list[Result], folder: Path) -> Path:
    return built(folder, results) / "overlap.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one layout on a machine and in a model that a paper has gains of, and of one on another."""
    known = {"system": "perlmutter", "model": "gpt-20b", "partition": "gpu", "dtype": "bf16", "cache": "28"}
    runs = [*ablation(grid="2x2x4x1", jobs=3, **known), *ablation(grid="2x2x1x2", job=300, overlaps=["none", ALL])]  # type: ignore[arg-type]
    runs += ablation(grid="2x2x4x1", failure="rank 3 was killed", job=900, **known)  # type: ignore[arg-type]
    return site_of(runs, tmp_path_factory.mktemp("overlap"))


def rows_of(page: Path, name: str) -> list[dict[str, str]]:
    return table(page, f"overlap-{name}")


def figure(page: Path, title: str, section: int = 0) -> str:
    return re.findall(rf"<h3>{title}</h3>.*?</figure>", page.read_text(), re.DOTALL)[section]


def facts(page: Path, name: str) -> str:
    return page.read_text().split(f'id="series-{name}"')[1].split("</dl>")[0]


def test_the_published_gains_stand_beside_ours_at_the_same_step(page: Path) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", figure(page, "A step by overlap"))
    drawn = ("none", "+ oar", "+ ors", "+ oag", "+ cache=28", "5 %", "8 %", "19 %", "9 %", "34 %")
    assert [texts.count(label) for label in drawn] == [1] * len(drawn)
    assert texts.count("par4d") == 2
    rows = {row["overlap"]: row for row in rows_of(page, f"{PERLMUTTER}-variants") if row["place"] == "ladder"}
    ours = 1 - float(rows["oar"]["ratio"])
    assert float(rows["oar"]["gain"]) == pytest.approx(ours)
    assert f"{100 * ours:.1f} %" in texts


def test_the_published_gain_of_another_paper_stands_beside_its_own_system(tmp_path: Path) -> None:
    times = {overlap: [10.0 - n] * 3 for n, overlap in enumerate(LADDER[:4])}
    page = site_of([turns(times, system="frontier", model="gpt-80b")], tmp_path)
    drawn = figure(page, "A step by overlap")
    assert ">18.69 %</text>" in drawn
    assert ">axonn-sc24</text>" in drawn
    assert ">par4d</text>" not in drawn
    assert in_order(drawn, "axonn-sc24", "GPT-80B", "8192 devices")


def test_the_facts_are_the_paired_speed_up_the_share_hidden_the_bound_and_the_greatest_gain(page: Path) -> None:
    (full,) = (row for row in rows_of(page, f"{PERLMUTTER}-details") if row["hides"] == "oar,ors,oag,cache=28")
    said = facts(page, PERLMUTTER)
    faster = [f"{1 / float(full[key]):.2f}x" for key in ("ratio", "ratio_high", "ratio_low")]
    assert f">{faster[0]}</dd>" in said
    assert f">{faster[1]} to {faster[2]}, 24 paired rounds</dd>" in said
    waits = float(full["blocking_s"]) + float(full["exposed_s"])
    assert float(full["share_hidden"]) == pytest.approx(float(full["hidden_s"]) / (float(full["hidden_s"]) + waits))
    assert f">{100 * float(full['share_hidden']):.1f} %</dd>" in said
    assert in_order(said, f"{1000 * waits:.1f} ms", "most along x")
    assert f">{float(full['step_by_bound']):.2f}x</dd>" in said
    assert f">{100 * float(full['share_of_greatest_gain']):.1f} %</dd>" in said
    ends = [f"{100 * float(full[f'share_of_greatest_gain_{end}']):.1f} %" for end in ("low", "high")]
    assert in_order(said, f">{' to '.join(ends)}", "bound of a step</dd>")


def test_the_table_of_variants_has_ratios_with_intervals_times_axes_memory_and_jobs(page: Path) -> None:
    rows = {row["hides"]: row for row in rows_of(page, f"{PERLMUTTER}-details")}
    assert list(rows) == ["none", "oar", "oar,ors", "oar,ors,oag", "oar,ors,oag,cache=28", "ors", "oag", "cache=28"]
    assert {row["share"] for row in rows.values()} == {"3 of 4"}
    full = rows["oar,ors,oag,cache=28"]
    assert float(full["ratio_low"]) < float(full["ratio"]) < float(full["ratio_high"]) < 1
    assert float(full["hidden_z"]) > float(full["exposed_z"]) > 0
    assert float(full["prefetch_bytes"]) > 0
    assert float(full["cached_blocks"]) == 4
    assert float(rows["none"]["cache_bytes"]) == 0
    assert (rows["none"]["ratio"], rows["ors"]["over_ratio"]) == ("", "")
    html = page.read_text()
    assert "rank 3 was killed" in html
    cell = f"{float(full['ratio']):.3f} ({float(full['ratio_low']):.3f} to {float(full['ratio_high']):.3f})"
    assert f">{cell}</td>" in html


def test_axes_that_the_layout_has_not_are_left_out_of_its_table(page: Path) -> None:
    assert "exposed_data" not in rows_of(page, f"{PERLMUTTER}-details")[0]
    assert "exposed_data" in rows_of(page, f"{VCLUSTER}-details")[0]


def test_every_layout_is_in_one_table_with_its_fullest_variant(page: Path) -> None:
    rows = rows_of(page, "layouts")
    assert [row["grid"] for row in rows] == ["2x2x4x1", "2x2x1x2"]
    assert [row["hides"] for row in rows] == ["oar,ors,oag,cache=28", "all"]
    assert [row["share"] for row in rows] == ["3 of 4", "1"]


def test_the_bound_of_the_step_is_marked_at_every_bar(page: Path) -> None:
    drawn = figure(page, "A step by overlap")
    assert "bound of the step</text>" in drawn
    assert len(re.findall(r"<use[^>]*stroke-width: 2\.4", drawn)) == 9 + 1  # five on the ladder, four alone, the legend


@pytest.mark.parametrize(("machine", "said"), [(SHARED, True), (OWN_CORES, False)])
def test_ranks_that_take_turns_on_cores_are_told_of(machine: object, said: bool, tmp_path: Path) -> None:
    html = site_of(ablation(machine=machine), tmp_path).read_text()  # type: ignore[arg-type]
    assert ("Ranks take turns" in html) == said
    assert (in_order(html, "2 ranks", "1 thread", "2 cores")) != said
    assert ">Processor seconds over cores</button>" in html


def test_twenty_grids_are_one_table_of_each_flag_alone_and_all_of_which_each_is_drawn(tmp_path: Path) -> None:
    ran = {"none": [10.0] * 6, "oar": [9.0] * 6, "oag": [8.0, 11.0] * 3, ALL: [5.0] * 6}
    sizes = [(x, y, z, 64 // x // y // z) for x in (1, 2, 4, 8) for y in (1, 2, 4) for z in (1, 2)][:20]
    grids = ["x".join(map(str, size)) for size in sizes]
    page = site_of([turns(ran, grid=grid, job=n) for n, grid in enumerate(grids)], tmp_path)
    rows = rows_of(page, "by-grid")
    assert sorted(row["grid"] for row in rows) == sorted(grids)
    assert all(float(row["oar_ratio"]) == pytest.approx(0.9) for row in rows)
    assert all(float(row["ratio"]) == pytest.approx(0.5) for row in rows)
    html = page.read_text()
    assert html.count("<svg") == html.count("<details>") == 20
    assert html.split('id="t-by-grid"')[1].split("</table>")[0].count('class="n q"') == 20  # oag alone may be chance
    assert in_order((page.parent / "index.html").read_text(), "2.00x", "2.00x", "2.00x", "20 layouts")


def test_the_headline_is_of_all_layouts_and_not_of_the_best(tmp_path: Path) -> None:
    slow = turns({"none": [10.0] * 3, ALL: [10.5] * 3}, grid="1x2x2x2")
    page = site_of([turns({"none": [10.0] * 3, ALL: [5.0] * 3}, job=1), slow], tmp_path)
    assert in_order((page.parent / "index.html").read_text(), "0.95x", "2.00x", "1.48x", "2 layouts")


def test_a_job_without_its_baseline_says_so_instead_of_a_gain(tmp_path: Path) -> None:
    html = site_of([turns({ALL: [8.0] * 3})], tmp_path).read_text()
    assert "no run without overlap" in html
    assert "not recorded, or no" in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)


def test_a_layout_whose_jobs_all_failed_says_so(tmp_path: Path) -> None:
    html = site_of([turns({}, failure="out of memory")], tmp_path).read_text()
    assert "Not measured: no job" in html
    assert "out of memory" in html
    assert not re.search(r"\bnan\b", html, re.IGNORECASE)


@pytest.mark.parametrize(
    ("second", "colour"), [([9.9, 10.1] * 4, "muted"), ([8.1, 8.3] * 4, "ink"), ([8.1], "muted"), ([11.0] * 8, "ink")]
)
def test_a_gain_is_written_in_grey_where_its_interval_has_no_difference_or_is_none(
    second: list[float], colour: str, tmp_path: Path
) -> None:
    page = site_of([turns({"none": [10.0] * len(second), "oar,ors": second})], tmp_path)
    gains = re.findall(r'style="([^"]*)"[^>]*>(\u2212?[\d.]+ %)</text>', figure(page, "A step by overlap"))
    assert len(gains) == 2
    assert all(f"var(--{colour})" in style for style, _ in gains)


def test_a_share_of_the_greatest_gain_is_grey_where_it_may_be_chance_and_more_than_all_is_told(tmp_path: Path) -> None:
    def site(name: str, time_s: list[float], bound_s: float) -> str:
        run = turns({"none": [10.0] * len(time_s), "oar": time_s})
        told = Breakdown(
            compute_s=9.0, collectives_s=1.0, bound=Bound(bound_s=bound_s, by="compute", step_by_bound=1.1)
        )
        variants = tuple(variant.model_copy(update={"breakdown": told}) for variant in run.sides(OverlapSide))
        return site_of([with_sides(run, variants)], tmp_path / name).read_text()

    sure, chance = site("sure", [9.0] * 6, 8.0), site("chance", [9.0, 10.6] * 3, 8.0)
    cell = r'<td class="{}" data-s="[^"]+">{}\s%\s\('
    assert re.search(cell.format("n", "50.0") + r"50.0 %\sto\s50.0 %\)</td>", sure)
    assert "down to the bound" in chance
    assert re.search(cell.format("n q", "10.0"), chance)
    assert not re.search(cell.format("n", "10.0"), chance)
    assert "More than 100 %" not in sure + chance
    assert "More than 100 %" in site("over", [7.0] * 6, 8.0)


def test_an_interval_of_few_rounds_of_one_job_is_said_not_to_be_known(tmp_path: Path) -> None:
    for rounds, known in ((5, False), (6, True)):
        page = site_of([turns({"none": [10.0] * rounds, "oar": [9.0] * rounds})], tmp_path / str(rounds)).read_text()
        assert ("0.900 (interval not known)" in page) != known
        assert ("0.900 (0.900 to 0.900)" in page) == known
        assert "nan" not in page.split("<script")[0].split()


def test_the_newest_job_with_a_timeline_is_drawn(tmp_path: Path) -> None:
    def timed(time_s: float | None, job: int) -> Result:
        run = turns({"none": [5.0]}, job=job)
        drawn = simulate("none").timeline(time_s) if time_s else None
        return with_sides(run, [run.sides(OverlapSide)[0].model_copy(update={"timeline": drawn})])

    page = site_of([timed(4.0, 5), timed(3.0, 0), timed(None, 9)], tmp_path)
    (name,) = (path.stem.removeprefix("overlap-") for path in (page.parent / "data").glob("overlap-*-timeline.csv"))
    assert max(float(row["end_s"]) for row in rows_of(page, name)) == pytest.approx(4.0)


def test_overlaps_of_earlier_versions_are_listed_among_other_runs(tmp_path: Path) -> None:
    old = [train(version=2, study="overlap_ablation", overlap=o, job=n) for n, o in enumerate(("none", ALL))]
    page = site_of(old, tmp_path)
    assert "Nothing measured yet" in page.read_text()
    index = (page.parent / "index.html").read_text()
    assert "that measured one overlap" in index
    rows = list(csv.DictReader((page.parent / "data" / "index-other.csv").open()))
    assert sorted(row["overlap"] for row in rows) == ["none", ALL]


def test_weak_scaling_shows_overlaps_of_the_same_layout_side_by_side(tmp_path: Path) -> None:
    runs = [train(overlap="none", time_s=20.0), train(time_s=15.0, job=1)]
    runs += [train(ranks=8192, model="gpt-80b", time_s=20.0, job=2, overlap="none")]
    runs += [train(ranks=8192, model="gpt-80b", time_s=16.0, job=3, grid="8x4x32x8")]
    page = site_of(runs, tmp_path)
    drawn = figure(page.parent / "weak_scaling.html", "Where the time goes")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert [texts.count(label) for label in ("none", "all", "512 · gpt-5b", "8,192 · gpt-80b")] == [1, 2, 1, 1]
    assert [label for label in texts if label.endswith(" %")] == ["25.0 %"]  # the other has another layout
    assert in_order(drawn, "22 %", "GPT-80B", "8,192 devices")
    assert "by medians over jobs" in drawn
