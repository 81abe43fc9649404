"""Shares of the peak: a run's own, else those of its system's file, else those of what was measured like it."""

import math
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order
from sample_results import gemm, save, train
from test_report_points import framed

from reports.figures.gemm import by_size
from reports.read.peaks import GIVEN, OWN
from reports.site import build

LOCAL: dict[str, Any] = {"system": "local", "partition": "cpu", "dtype": "fp32"}


def small(**changes: Any) -> Any:
    return train(ranks=1, grid="1x1x1x1", **(LOCAL | changes))


def test_hfu_and_mfu_are_of_the_advertised_peak_and_differ_by_the_recomputation() -> None:
    run = framed(train(ranks=512)).runs.iloc[0]
    assert run["hfu"] == pytest.approx(run["hardware_flops_per_s"] / 512 / 191.5e12)
    assert run["mfu"] == pytest.approx(run["model_flops_per_s"] / 512 / 191.5e12)
    assert run["mfu"] == pytest.approx(0.75 * run["hfu"], rel=0.02)  # all but the output layer is recomputed
    assert run["of_empirical"] == pytest.approx(run["hardware_flops_per_s"] / 512 / 125e12)


def test_the_peak_given_to_the_run_goes_before_the_systems_file() -> None:
    run = framed(train(peak=100e12)).runs.iloc[0]
    assert run["hfu"] == pytest.approx(run["hardware_flops_per_s"] / 512 / 100e12)


def test_an_unknown_system_has_no_share_of_a_peak() -> None:
    run = framed(train(system="nowhere")).runs.iloc[0]
    assert math.isnan(run["hfu"])
    assert math.isnan(run["of_empirical"])


def test_a_runs_own_empirical_peak_goes_before_the_systems_file() -> None:
    own = train(empirical=100e12)
    given = train(empirical=100e12, job=1)
    assert given.summary
    given = given.model_copy(update={"summary": given.summary.model_copy(update={"empirical_peak_measured": False})})
    runs = framed(own, given, train(job=2)).runs
    assert runs["empirical"].tolist() == pytest.approx([100e12, 100e12, 125e12])
    assert runs["empirical_from"].tolist()[:2] == [OWN, GIVEN]
    assert runs["empirical_from"].iloc[2].startswith("of the system's file")
    assert runs["of_empirical"].iloc[0] == pytest.approx(runs["hardware_flops_per_s"].iloc[0] / 512 / 100e12)


def test_figures_that_a_result_carries_are_taken_from_it() -> None:
    run = train(peak=191.5e12, empirical=125e12)
    assert run.summary
    summary = run.summary.model_copy(update={"hfu": 0.11, "mfu": 0.12, "of_empirical": 0.13})
    row = framed(run.model_copy(update={"summary": summary})).runs.iloc[0]
    assert row[["hfu", "mfu", "of_empirical"]].tolist() == [0.11, 0.12, 0.13]


def test_a_gemm_result_is_the_empirical_peak_of_its_system_partition_and_dtype_only() -> None:
    runs = framed(
        small(),
        gemm(best=90e9, **LOCAL),
        gemm(best=80e9, job=1, **LOCAL),
        gemm(best=999e9, system="local", partition="cpu", dtype="fp64", job=2),
        gemm(best=999e9, system="local", partition="other", dtype="fp32", job=3),
        gemm(best=999e9, system="elsewhere", partition="cpu", dtype="fp32", job=4),
    ).runs
    assert runs["empirical"].iloc[0] == pytest.approx(90e9, rel=0.01)
    assert runs["empirical_from"].iloc[0].startswith("measured on 1 rank")


def test_on_processors_a_gemm_result_counts_for_as_many_ranks_and_threads_only() -> None:
    four = train(ranks=4, grid="2x1x2x1", **LOCAL)
    for other in ({"ranks": 1}, {"ranks": 8}, {"ranks": 4, "threads": 2}, {"ranks": 4, "threads": None}):
        assert math.isnan(framed(four, gemm(best=90e9, **(LOCAL | other))).runs["of_empirical"].iloc[0]), other
    runs = framed(four, gemm(best=90e9, job=1, **LOCAL), gemm(best=30e9, ranks=4, job=2, **LOCAL)).runs
    assert runs["empirical"].iloc[0] == pytest.approx(30e9, rel=0.01)
    old = train(ranks=1, grid="1x1x1x1", version=2, **LOCAL)
    assert math.isnan(framed(old, gemm(best=90e9, **LOCAL)).runs["of_empirical"].iloc[0])


def test_one_accelerator_alone_stands_for_all_unless_as_many_were_measured_at_once() -> None:
    known = {"system": "mine", "partition": "gpu", "dtype": "bf16"}
    alone, joint = gemm(best=100e12, **known), gemm(best=80e12, ranks=512, job=1, **known)
    run = train(**known)  # type: ignore[arg-type]
    assert framed(run, alone).runs["empirical"].iloc[0] == pytest.approx(100e12, rel=0.01)
    assert framed(run, alone, joint).runs["empirical"].iloc[0] == pytest.approx(80e12, rel=0.01)
    assert math.isnan(framed(run, gemm(ranks=8, **known)).runs["empirical"].iloc[0])


def test_more_than_the_whole_peak_is_explained(tmp_path: Path) -> None:
    for peak, said in ((1e9, True), (1e18, False)):
        save([small(empirical=peak)], tmp_path / f"{said}")
        build([tmp_path / f"{said}"], tmp_path / "site")
        html = (tmp_path / "site" / "weak_scaling.html").read_text()
        assert ("More than 100 %" in html) == said
        assert f"Empirical: {OWN}." in unescape(html)


def test_rates_of_one_rank_and_of_several_at_once_are_never_one_curve(tmp_path: Path) -> None:
    built(tmp_path, [gemm(best=90e9, **LOCAL), gemm(best=30e9, ranks=4, job=1, **LOCAL)])
    html = (tmp_path / "site" / "peak.html").read_text()
    assert html.count("<svg") == 2
    assert in_order(html, "one rank alone", "1 thread</h2>", within=3)
    assert in_order(html, "4 ranks", "1 thread each</h2>")
    assert "30.12 Gflop/s" in html.split("1 thread each</h2>")[1]
    index = (tmp_path / "site" / "index.html").read_text()
    assert in_order(index, "fp32 on local", "one rank alone", "1 thread", within=3)


def test_gemm_sizes_keep_their_median_and_the_reason_why_one_was_skipped() -> None:
    everything = framed(gemm(job=0), gemm(job=1), gemm(job=2))
    table = by_size(everything, everything.runs).set_index("size")
    assert table.loc[32768, "flops_per_s"] == pytest.approx(122e12 * 1.004)
    assert table.loc[32768, "jobs"] == 3
    assert math.isnan(table.loc[65536, "flops_per_s"])
    assert table.loc[65536, "skipped"].startswith("needs 24 GiB, 16")
