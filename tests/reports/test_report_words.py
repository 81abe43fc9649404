"""Headlines, facts and captions where a number alone would flatter."""

import re
from html import unescape
from pathlib import Path

import pytest
from reading import built, in_order
from sample_results import gemm, strong, train
from sample_steps import simulate

from engine.result.schema import Result


def site_of(results: list[Result], folder: Path) -> Path:
    return built(folder, results)


def headline(site: Path, study: str) -> str:
    card = (site / "index.html").read_text().split(f'href="{study}.html">')[2].split("</li>")[0]
    return unescape(re.findall(r'<p class="headline">([^<]*)</p>', card)[0])


def text(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.read_text())).split())


def test_the_headline_of_strong_scaling_says_what_its_efficiency_is_relative_to(tmp_path: Path) -> None:
    site = site_of(strong(points=4), tmp_path)
    assert headline(site, "strong_scaling").startswith("9")
    assert in_order(headline(site, "strong_scaling"), "% efficiency", "1,024 devices", "frontier", "128 devices")


def test_one_device_count_has_no_efficiency_to_boast_of(tmp_path: Path) -> None:
    site = site_of(strong(points=1), tmp_path)
    assert in_order(headline(site, "strong_scaling"), "One device count", "128 devices")
    assert "efficiency not measured one" in text(site / "strong_scaling.html")


def test_the_headline_is_of_the_series_that_goes_furthest_and_relative_to_its_own_smallest(tmp_path: Path) -> None:
    other = strong(points=1, first=64, model="gpt-40b")
    site = site_of([*strong(points=3), *other], tmp_path)
    assert in_order(headline(site, "strong_scaling"), "512 devices", "128 devices")


@pytest.mark.parametrize(("second", "said"), [(8.0, True), (12.0, False)])
def test_more_than_the_whole_efficiency_is_explained(second: float, said: bool, tmp_path: Path) -> None:
    runs = [train(time_s=20.0), train(ranks=1024, time_s=second, job=1)]
    assert ("More than 100 %:" in text(site_of(runs, tmp_path) / "weak_scaling.html")) == said


def test_a_median_says_how_many_of_its_jobs_failed(tmp_path: Path) -> None:
    site = site_of([train(), train(job=1), train(job=2, failure="a rank was lost")], tmp_path)
    assert in_order(text(site / "weak_scaling.html"), "18.00 s", "2 of 3 jobs", "1 failed")


def test_device_counts_at_which_every_job_failed_are_named_below_each_figure(tmp_path: Path) -> None:
    lost = train(ranks=2048, model="gpt-20b", failure="a rank was lost", job=2)
    site = site_of([train(), train(ranks=1024, job=1), lost], tmp_path)
    page = (site / "weak_scaling.html").read_text()
    assert len(re.findall(r"every job failed: .*2,048", page)) == 4


def test_the_fastest_of_several_layouts_says_of_how_many(tmp_path: Path) -> None:
    runs = [train(time_s=12.0), train(grid="4x2x8x8", time_s=9.0, job=1), train(grid="2x4x8x8", failure="lost", job=2)]
    assert in_order(text(site_of(runs, tmp_path) / "weak_scaling.html"), "gpt-5b", "4x2x8x8", "2 that")


def test_jobs_that_failed_are_counted_beside_the_median_of_a_peak(tmp_path: Path) -> None:
    lost = gemm(job=1).model_copy(update={"status": "failed", "reason": "lost", "gemm": (), "best_flops_per_s": None})
    assert in_order(text(site_of([gemm(), lost], tmp_path) / "peak.html"), "32,768, 1 job, 1", "more")


def test_results_that_tell_a_bound_show_it_and_the_share_hidden_with_older_ones_beside_them(tmp_path: Path) -> None:
    step = simulate("oar,ors,oag,cache=auto")
    runs = [train(step=step), train(step=step, version=2, ranks=1024, job=1)]
    runs[1] = runs[1].model_copy(update={"breakdown": step.breakdown(18.0).model_copy(update={"bound": None})})
    page = text(site_of(runs, tmp_path) / "weak_scaling.html")
    table = page.split("Time and memory")[1].split("Collectives of one iteration")[0]
    told = step.breakdown(18.0)
    assert told.bound
    assert told.share_hidden is not None
    assert f"{100 * told.share_hidden:.1f} %" in table
    assert f"{told.bound.step_by_bound:.2f}x" in table
    assert table.count("not recorded") == 6
    assert "The mark: what bounds" in page
