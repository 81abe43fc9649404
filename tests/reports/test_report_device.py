"""The page of peaks: a curve a number format, the memory bandwidth, launches; each beside what is advertised."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order, table, words
from sample_devices import broadcasts, counted, latency, links, memory, transfers
from sample_results import gemm
from test_report_points import framed

from reports.figures import gemm as products
from reports.figures import links as between
from reports.figures import memory as alone

FAR = ("0 2", "0 3", "1 2", "1 3", "0 1 2 3")


def page(results: list[Any], folder: Path) -> str:
    return (built(folder, results) / "peak.html").read_text()


def test_a_number_format_has_a_curve_of_its_own_with_its_peaks_and_its_best(tmp_path: Path) -> None:
    html = page([gemm(), gemm(dtype="fp64", best=35e12, job=1), gemm(dtype="fp32", best=38e12, job=2)], tmp_path)
    curves = re.findall(r"<h3>Matrix products in (\w+)</h3>\s*(<svg.*?</svg>)", html, re.DOTALL)
    assert [dtype for dtype, _ in curves] == ["bf16", "fp32", "fp64"]
    bf16, fp32, fp64 = (words(svg) for _, svg in curves)
    assert in_order(bf16, "191.5 Tflop/s (axonn-sc24 VI-C", "AMD CDNA 3 white")
    assert in_order(bf16, "125.0 Tflop/s (axonn-sc24 VI-C", "rocBLAS, 32768 x 32768)")
    assert in_order(bf16[-60:], "best 122", "published", "advertised")
    assert "published" not in fp32 + fp64
    assert "best 38.3" in fp32
    assert "best 35.1" in fp64
    assert len(re.findall("24 GiB, 16 GiB", words(html))) == 3


def test_modes_are_told_of_the_rate_of_row_by_row(tmp_path: Path) -> None:
    html = page([gemm(), gemm(job=1), gemm(best=180e12, job=2)], tmp_path)
    assert "Matrix products by mode" in html
    everything = framed(gemm(), gemm(job=1), gemm(best=180e12, job=2))
    rows = products.by_mode(everything, everything.runs).set_index("mode")
    assert rows["of_nn"].to_dict() == pytest.approx({"NN": 1, "NT": 0.95 / 0.97, "TN": 0.36 / 0.97})
    assert rows["flops_per_s"]["TN"] == pytest.approx(0.36 * 122e12)
    assert set(rows["jobs"]) == {3}


def test_the_best_size_is_marked_wherever_it_is() -> None:
    result = gemm()
    falling = tuple(reversed([point.flops_per_s for point in result.gemm[:-1]]))
    points = tuple(
        point.model_copy(update={"flops_per_s": rate}) for point, rate in zip(result.gemm, falling, strict=False)
    )
    everything = framed(result.model_copy(update={"gemm": (*points, result.gemm[-1])}))
    (table,) = products.by_format(everything, everything.runs).values()
    best = products.fastest_size(table)
    assert best is not None
    assert (best["size"], best["flops_per_s"]) == (1024, pytest.approx(122e12))


def test_a_page_of_failed_jobs_has_no_curve_and_says_so(tmp_path: Path) -> None:
    lost = gemm().model_copy(update={"status": "failed", "reason": "lost", "gemm": (), "best_flops_per_s": None})
    html = page([lost], tmp_path)
    assert "Not measured: no job" in html
    assert "<svg" not in html
    both = words(page([lost, memory()], tmp_path / "both"))
    assert in_order(both, "bf16", "1 more")


def test_bandwidth_is_the_median_over_jobs_and_its_share_that_of_the_systems_file() -> None:
    everything = framed(*(memory(job=job) for job in range(3)))
    table = alone.by_kernel(everything, everything.runs).set_index("kernel")
    assert table.index.tolist() == ["copy", "scale", "add", "triad"]
    triad = table.loc["triad"]
    assert triad["bytes_per_s"] == pytest.approx(1.31e12 * 1.01)
    assert (triad["bytes_per_s_low"], triad["bytes_per_s_high"]) == pytest.approx((1.31e12, 1.31e12 * 1.02))
    assert triad["median_bytes_per_s"] == pytest.approx(0.97 * 1.31e12 * 1.01)
    assert triad["of_advertised"] == pytest.approx(1.31 * 1.01 / 1.6)
    assert triad["jobs"] == 3


def test_bandwidth_is_drawn_beside_the_advertised_one_or_without_it(tmp_path: Path) -> None:
    known = words(page([memory()], tmp_path / "known"))
    assert "1.31 TB/s" in known
    assert in_order(known, "81.9 %", "1.07 GB, 1 job")
    assert "1.60 TB/s (OLCF" in known
    unknown = words(page([memory(system="local", partition="cpu", triad=9e9)], tmp_path / "unknown"))
    assert "1.07 GB, 1 job" in unknown
    assert "Upright mark" not in unknown


@pytest.mark.parametrize(("cache", "warned"), [(2**28, False), (2**28 + 1, True), (None, False)])
def test_arrays_that_are_small_beside_the_cache_are_told(cache: int | None, warned: bool, tmp_path: Path) -> None:
    said = words(page([memory(cache_bytes=cache)], tmp_path))
    assert ("part of what they" in said) == warned


def test_launches_are_a_table_of_what_the_device_has(tmp_path: Path) -> None:
    everything = framed(latency(dispatch=4e-6), latency(dispatch=6e-6, job=1), latency(dispatch=9e-6, job=2))
    table = alone.by_launch(everything, everything.runs)
    assert table["name"].tolist() == ["dispatch", "completion", "graph"]
    assert table["launch_s"].tolist() == pytest.approx([6e-6, 30e-6, 2.4e-6])
    assert table["high_s"].tolist() == pytest.approx([9.6e-6, 48e-6, 3.84e-6])
    said = words(page([latency(system="local", partition="cpu", dispatch=2.5e-6)], tmp_path))
    assert in_order(said, "2.500 µs", "1 job")
    assert "graph" not in said.split("Launch latency")[1].split("Details")[0]


def test_what_measures_no_matrix_products_is_no_peak_of_a_training(tmp_path: Path) -> None:
    html = page([memory(), latency()], tmp_path)
    assert html.count("gpu, one rank alone</h2>") == 1
    index = words((tmp_path / "site" / "index.html").read_text())
    assert "Memory and launches only" in index


def test_counted_flops_are_a_table_in_which_a_formula_that_is_off_stands_out(tmp_path: Path) -> None:
    html = page([counted(), counted(job=1), counted(job=2, off=1.01)], tmp_path)
    rows = table(tmp_path / "site" / "peak.html", "peak-local-cpu-one-rank-alone-1-thread-flops")
    found = [(row["recomputed"], row["formula_over_counted"], row["jobs"]) for row in rows]
    assert found[:2] == [("nothing", "1.0", "2"), ("blocks", "1.0", "2")]
    assert [(step, jobs) for step, _, jobs in found[2:]] == [("nothing", "1"), ("blocks", "1")]
    assert [float(ratio) for _, ratio, _ in found[2:]] == pytest.approx([1.01, 1.01], rel=1e-6)
    assert in_order(words(html), "1.010x", "gpt-test", "6 counts")


def test_rings_are_a_table_by_shape_of_medians_over_the_jobs_that_ended_well() -> None:
    lost = links(job=3).model_copy(update={"status": "failed", "reason": "lost"})
    everything = framed(links(), links(job=1), links(job=2), lost)
    table = between.by_shape(everything, everything.runs)
    shapes = [tuple(row) for row in table[["where", "apart", "ring", "groups", "nodes"]].itertuples(index=False)]
    assert shapes == [("within", 1, 2, 4, 1), ("alone", 2, 4, 1, 4), ("shared", 1, 8, 1, 4), ("shared", 2, 4, 2, 4)]
    assert table["ring_bytes_per_s"].tolist() == pytest.approx([rate * 21.42e9 for rate in (5, 1, 0.9, 0.6)])
    assert table["all_reduce"].tolist() == pytest.approx([1.1 * rate * 21.42e9 for rate in (5, 1, 0.9, 0.6)])
    assert table["jobs"].tolist() == [3] * 4


def test_the_page_tells_the_bandwidth_between_nodes_or_within_one(tmp_path: Path) -> None:
    several = words(page([links()], tmp_path / "several"))
    assert in_order(several, "4 ranks", "21.0 GB/s")
    assert in_order(several, "1 2 4 1", "105 GB/s 105 GB/s", "105 GB/s 116 GB/s", "1.00 GB 1")
    alone = words(page([links(nodes=1)], tmp_path / "alone"))
    assert in_order(alone, "2 ranks", "105 GB/s", "1.00 GB")
    index = words((tmp_path / "alone" / "site" / "index.html").read_text())
    assert "Bandwidth between ranks only" in index


def test_the_map_of_a_machine_has_the_bandwidth_of_each_two_ranks(tmp_path: Path) -> None:
    everything = framed(broadcasts(), broadcasts(near=200e9, job=1), broadcasts(near=100e9, job=2))
    table = between.by_group(everything, everything.runs)
    rates = dict(zip(table["ranks"], table["broadcast_bytes_per_s"], strict=True))
    assert rates == pytest.approx({"0 1": 184e9, "2 3": 184e9} | dict.fromkeys(FAR, 15e9))
    html = page([broadcasts()], tmp_path)
    (drawn,) = re.findall(r"<h3>Bandwidth between each two ranks</h3>\s*(<svg.*?</svg>)", html, re.DOTALL)
    numbers = re.findall(r"\b(?:184|15)\b", words(drawn))
    assert (numbers.count("184"), numbers.count("15")) == (4 + 1, 8 + 1)  # each is in the description, too
    assert in_order(words(html), "15.0 GB/s between ranks 0 and 2", "184 GB/s at the most")
    assert in_order(words(html), "0 1 2 3", "15.0 GB/s", "125 MB")


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0.0, -1.0])
def test_a_map_leaves_out_what_is_no_rate(rate: float) -> None:
    some, none = framed(broadcasts(far=rate)), framed(broadcasts(near=rate, far=rate))
    drawn = between.pair_map("some", between.by_group(some, some.runs))
    assert drawn is not None
    assert drawn.csv["ranks"].tolist() == ["0 1", "2 3"]
    assert between.pair_map("none", between.by_group(none, none.runs)) is None


def test_back_ends_are_side_by_side_by_size_within_a_node_and_between_two(tmp_path: Path) -> None:
    everything = framed(transfers(), transfers(job=1), transfers(job=2))
    table = between.by_size(everything, everything.runs)
    first = table.iloc[0]
    assert first[["operation", "backend", "words", "jobs"]].tolist() == ["message", "gloo", "within a node", 3]
    assert (first["average_s"], first["low_s"], first["high_s"]) == pytest.approx((4e-5, 1.8e-5, 7.2e-5))
    html = page([transfers()], tmp_path)
    said = words(html)
    assert "1 KiB 10.00 µs" in said
    assert in_order(said, "2 1,024 20.00 µs", "10.00 µs 10.00 µs")
    assert in_order(said, "2 nodes 4 262,144", "1.280 ms", "640.0 µs")
    charts = re.findall(r"<h3>([\w -]+)</h3>\s*(<svg.*?</svg>)", html, re.DOTALL)
    assert [title for title, _ in charts] == ["Messages between two ranks", "All-reduces"]
    assert all("mpi, 2 nodes" in words(svg) for _, svg in charts)
    index = words((tmp_path / "site" / "index.html").read_text())
    assert "Bandwidth between ranks only" in index
