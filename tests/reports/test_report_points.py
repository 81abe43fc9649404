"""From jobs to points: medians, failures, efficiency, peaks, and the published figures beside them."""

import math
from pathlib import Path

import pandas as pd
import pytest
from sample_results import gemm, train, validation

from engine.result.schema import Result
from reports import published
from reports.frame import Frames, frames
from reports.load import Run
from reports.peaks import with_peaks
from reports.points import fastest, points
from reports.studies.peak import by_size
from reports.studies.validation import compare


def framed(*results: Result) -> Frames:
    everything = frames([Run(result, f"{number}.json") for number, result in enumerate(results)])
    return everything.of(with_peaks(everything.runs))


def test_repeated_jobs_become_one_point_with_median_range_and_count() -> None:
    table = points(framed(*(train(time_s=time_s, job=job) for job, time_s in enumerate((20.0, 10.0, 12.0)))).runs)
    assert len(table) == 1
    point = table.iloc[0]
    assert (point["time_s"], point["time_s_low"], point["time_s_high"], point["jobs"]) == pytest.approx(
        (12.0, 10.0, 20.0, 3)
    )


@pytest.mark.parametrize(
    "change", [{"grid": "4x2x8x8"}, {"sequences": 4096}, {"dtype": "fp32"}, {"recompute": False}, {"variant": "b"}]
)
def test_jobs_that_differ_in_what_was_run_are_different_points(change: dict[str, object]) -> None:
    assert len(points(framed(train(), train(job=1, **change)).runs)) == 2  # type: ignore[arg-type]


def test_a_failed_job_never_contributes_a_number() -> None:
    table = points(framed(train(time_s=10.0), train(job=1, failure="a rank was lost")).runs)
    point = table.iloc[0]
    assert (point["time_s"], point["jobs"], point["failed"], point["reason"]) == (
        pytest.approx(10.0),
        1,
        1,
        "a rank was lost",
    )


def test_a_point_with_failed_jobs_only_has_no_number_at_all() -> None:
    point = points(framed(train(failure="out of memory")).runs).iloc[0]
    assert (point["jobs"], point["failed"], point["reason"]) == (0, 1, "out of memory")
    for measure in ("time_s", "hardware_flops_per_s", "hfu", "mfu", "efficiency", "memory_max"):
        assert math.isnan(point[measure])


def test_numbers_that_are_not_finite_or_zero_times_are_not_measured() -> None:
    run = train()
    assert run.summary
    bad = run.summary.model_copy(update={"time_per_iteration_s": math.nan, "tokens_per_s": math.inf, "hfu": 0.0})
    zero = run.summary.model_copy(update={"time_per_iteration_s": 0.0})
    table = framed(run.model_copy(update={"summary": bad}), run.model_copy(update={"summary": zero})).runs
    assert table["time_s"].isna().all()
    assert math.isnan(table["tokens_per_s"].iloc[0])


def test_efficiency_is_flops_per_device_relative_to_the_smallest_point() -> None:
    table = points(framed(train(ranks=512, time_s=10.0), train(ranks=1024, time_s=8.0, job=1)).runs)
    assert table["efficiency"].tolist() == pytest.approx([1.0, 10 / 8 / 2])


def test_points_of_another_series_are_no_base_for_efficiency() -> None:
    small = train(ranks=64, grid="8x1x8x1", sequences=2048, time_s=1.0, series="par4d")
    table = points(framed(small, train(series="axonn-sc24", job=1), train(ranks=1024, series="axonn-sc24", job=2)).runs)
    assert table.set_index("ranks")["efficiency"].to_dict() == pytest.approx({64: 1.0, 512: 1.0, 1024: 0.5})


def test_efficiency_is_not_raised_by_recomputing_more() -> None:
    series = [train(ranks=512, time_s=10.0, recompute=False), train(ranks=1024, time_s=10.0, job=1)]
    assert points(framed(*series).runs)["efficiency"].tolist() == pytest.approx([1.0, 0.5])


def test_the_line_goes_through_the_fastest_layout_of_each_device_count() -> None:
    runs = framed(train(time_s=12.0), train(grid="4x2x8x8", time_s=9.0, job=1), train(ranks=1024, job=2)).runs
    assert fastest(points(runs))[["ranks", "grid"]].values.tolist() == [[512, "4x2x8x8"], [1024, "8x1x8x8"]]


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


def test_a_gemm_result_is_the_empirical_peak_of_its_system_partition_and_dtype_only() -> None:
    local = {"system": "local", "partition": "cpu", "dtype": "fp32"}
    runs = framed(
        train(ranks=1, grid="1x1x1x1", **local), gemm(best=90e9, **local), gemm(best=80e9, job=1, **local),
        gemm(best=999e9, system="local", partition="cpu", dtype="fp64", job=2),
        gemm(best=999e9, system="local", partition="other", dtype="fp32", job=3),
        gemm(best=999e9, system="elsewhere", partition="cpu", dtype="fp32", job=4),
    ).runs  # fmt: skip
    assert runs["empirical"].iloc[0] == pytest.approx(90e9, rel=0.01)


def test_published_efficiencies_agree_with_those_the_paper_states() -> None:
    table = published.weak_scaling().set_index(["paper", "system", "ranks"])["efficiency"]
    stated = pd.read_csv(Path(published.__file__).with_name("published") / "weak_scaling.csv")
    stated = stated[stated["metric"] == "weak_efficiency"]
    assert len(stated) == 4
    for _, row in stated.iterrows():
        assert 100 * table["axonn-sc24", row["system"], row["devices"]] == pytest.approx(row["value"], abs=0.2)


def test_published_batch_times_and_flops_agree_with_the_engines_own_count() -> None:
    from engine.models.architecture import hardware_flops
    from engine.models.catalogue import lookup

    table = published.weak_scaling().dropna(subset=["hardware_flops_per_s", "time_s"])
    assert len(table) == 15
    for _, row in table.iterrows():
        flops = hardware_flops(lookup(row["model"]), row["batch_tokens"] // 2048, recompute=True)
        assert flops / row["hardware_flops_per_s"] == pytest.approx(row["time_s"], rel=1e-3)


def test_every_published_number_names_a_paper_and_a_table_or_section() -> None:
    for name in ("weak_scaling.csv", "peaks.csv", "gains.csv", "time_to_solution.csv"):
        table = pd.read_csv(Path(published.__file__).with_name("published") / name)
        assert (
            table["source"]
            .str.fullmatch(r"(axonn-sc24|par4d|axonn-ipdps22) (Table|section) [-IVABCD]+(, implied)?")
            .all()
        )
        assert not table.drop(columns="note").duplicated().any()


def test_the_published_series_is_drawn_where_system_and_model_match() -> None:
    assert published.matching("frontier", {"gpt-5b"})["ranks"].tolist() == [512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert set(published.matching("Perlmutter", {"GPT-40B"})["paper"]) == {"axonn-sc24", "par4d"}
    assert set(published.matching("perlmutter", {"gpt-40b"}, "axonn-sc24")["paper"]) == {"axonn-sc24"}
    assert published.matching("frontier", {"gpt-local-1"}).empty
    assert published.matching("local", {"gpt-5b"}).empty


def test_a_4d_run_is_compared_with_the_serial_run_nearest_in_time() -> None:
    common = {"model": "gpt-test", "study": "validation", "sequences": 16}
    runs = framed(
        train(ranks=1, grid="1x1x1x1", losses=(3.0, 2.0, 1.0), job=0, **common),  # type: ignore[arg-type]
        train(ranks=1, grid="1x1x1x1", losses=(3.5, 2.5, 1.5), job=9, **common),  # type: ignore[arg-type]
        train(ranks=16, grid="2x2x2x2", losses=(3.5, 2.4, 1.5), job=10, **common),  # type: ignore[arg-type]
    )
    pairs, steps = compare(runs)
    assert pairs["serial"].tolist() == [1]
    assert pairs["largest"].iloc[0] == pytest.approx(0.1)
    assert pairs["largest_relative"].iloc[0] == pytest.approx(0.1 / 2.5)
    assert steps["difference"].tolist() == pytest.approx([0.0, -0.1, 0.0])


def test_a_4d_run_without_a_serial_one_is_not_compared() -> None:
    pairs, _ = compare(framed(validation()[1]))
    assert math.isnan(pairs["largest"].iloc[0])


def test_gemm_sizes_keep_their_median_and_the_reason_why_one_was_skipped() -> None:
    everything = framed(gemm(job=0), gemm(job=1), gemm(job=2))
    table = by_size(everything, everything.runs).set_index("size")
    assert table.loc[32768, "flops_per_s"] == pytest.approx(122e12 * 1.004)
    assert table.loc[32768, "jobs"] == 3
    assert math.isnan(table.loc[65536, "flops_per_s"])
    assert table.loc[65536, "skipped"] == "needs 24 GiB, 16 GiB are free"
