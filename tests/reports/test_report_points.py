"""From jobs to points: medians, failures, efficiency, peaks, and the published figures beside them."""

import math
from pathlib import Path
from typing import Any

import pytest
from reading import in_order
from sample_results import save, train, validation

from engine.published import select
from engine.result.metrics import WINDOW
from engine.result.schema import Result
from reports.frames.curves import compare
from reports.frames.frame import Frames, frames
from reports.frames.points import fastest, points
from reports.page import Facts
from reports.pages.validation import STUDY
from reports.read import published
from reports.read.load import Run
from reports.read.peaks import with_peaks
from reports.site import build


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
    assert fastest(points(runs))[["ranks", "grid"]].values.tolist() == [[512, "4x2x8x8"], [1024, "8x1x8x16"]]


def test_whiskers_of_efficiency_are_those_of_the_jobs_against_the_same_base() -> None:
    runs = [train(ranks=512, time_s=10.0)] + [train(ranks=1024, time_s=t, job=1 + n) for n, t in enumerate((5.0, 8.0))]
    rows = points(framed(*runs).runs).set_index("ranks")
    assert rows.loc[1024, ["efficiency_low", "efficiency_high"]].tolist() == pytest.approx([10 / 8 / 2, 1.0])


def test_published_efficiencies_agree_with_those_the_paper_states() -> None:
    table = published.weak_scaling().set_index(["paper", "system", "ranks"])["efficiency"]
    stated = select(study="weak_scaling", metric="efficiency")
    assert len(stated) == 4
    for one in stated:
        (found,) = table.loc[[("axonn-sc24", one.system, one.devices)]]
        assert found == pytest.approx(one.si, abs=0.002)


def test_published_batch_times_and_flops_agree_with_the_engines_own_count() -> None:
    from engine.models.catalogue import lookup
    from engine.models.flops import hardware_flops

    table = published.weak_scaling().dropna(subset=["hardware_flops_per_s", "time_s"])
    assert len(table) == 15
    for _, row in table.iterrows():
        flops = hardware_flops(lookup(row["model"]), row["batch_tokens"] // 2048, recompute=True)
        assert flops / row["hardware_flops_per_s"] == pytest.approx(row["time_s"], rel=1e-3)


def test_published_ranges_of_times_follow_from_those_of_the_share_of_the_peak() -> None:
    from engine.models.catalogue import lookup
    from engine.models.flops import hardware_flops

    table = published.weak_scaling_ranges()
    assert len(table) == 4 * 3
    for _, row in table.iterrows():
        flops = hardware_flops(lookup(row["model"]), row["batch_tokens"] // 512, recompute=True)
        least, most = (flops / (row["ranks"] * 125e12 * row[end]) for end in ("hfu_high", "hfu_low"))
        assert (least, most) == pytest.approx((row["time_s_low"], row["time_s_high"]), rel=1e-3)


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
    assert pairs["largest"].iloc[0] == pytest.approx(0.1 / 2.5)
    assert steps["difference"].tolist() == pytest.approx([0.0, -0.1, 0.0])


def test_a_loss_that_is_no_number_differs_without_bound() -> None:
    serial, parallel = validation()
    iterations = list(parallel.iterations)
    iterations[7] = iterations[7].model_copy(update={"loss": math.nan})
    parallel = parallel.model_copy(update={"iterations": tuple(iterations)})
    everything = framed(serial, parallel)
    pairs, _ = compare(everything)
    assert pairs["largest"].iloc[0] == math.inf
    page = STUDY.build(everything, everything)
    assert in_order(page.headline, "without bound", "1 4D run")
    assert isinstance(page.sections[0].blocks[0], Facts)
    assert page.sections[0].blocks[0].facts[0][0] == "without bound"


def test_a_4d_run_without_a_serial_one_is_not_compared() -> None:
    pairs, _ = compare(framed(validation()[1]))
    assert math.isnan(pairs["largest"].iloc[0])


def test_of_networks_of_images_rates_and_losses_are_in_images(tmp_path: Path) -> None:
    result = train()
    assert result.model is not None
    assert result.summary is not None
    seen = result.summary.model_copy(update={"samples_per_s": 123.0})
    shape = result.model.model_copy(update={"vocabulary": None, "family": "unet"})
    save([result.model_copy(update={"model": shape, "summary": seen})], tmp_path)
    build([tmp_path], tmp_path / "site")
    page = (tmp_path / "site" / "weak_scaling.html").read_text()
    assert "Images/s" in page
    assert "The batch is in" in page
    assert "Tokens/s" not in page
    assert "mean loss" in page


def test_a_long_curve_is_compared_by_means_with_data_parallelism_of_its_own_course() -> None:
    common: dict[str, Any] = {"model": "gpt-test", "study": "validation", "sequences": 16}
    steps = 3 * WINDOW
    level, noisy = (2.0,) * steps, tuple(2.0 + 0.1 * (-1) ** step for step in range(steps))
    runs = framed(
        train(ranks=1, grid="1x1x1x1", losses=(9.0,) * steps, job=0, **common),
        train(ranks=2, grid="1x1x1x2", losses=level, variant="long-text-data", job=1, **common),
        train(ranks=2, grid="1x1x1x2", losses=(3.0,) * steps, variant="long-stages-data", job=2, **common),
        train(ranks=2, grid="1x1x2x1", losses=noisy, variant="long-text", job=3, **common),
        train(ranks=2, grid="1x2x1x1", losses=(3.3,) * steps, variant="long-stages", job=4, **common),
        train(ranks=2, grid="2x1x1x1", losses=(9.0,) * steps, variant="4d", job=5, **common),
    )
    pairs, _ = compare(runs)
    found = {row["run"]: (row["serial"], row["reference"]) for _, row in pairs.iterrows()}
    assert found == {3: (1, "data-parallel"), 4: (2, "data-parallel"), 5: (0, "serial")}
    largest = pairs.set_index("run")["largest"].to_dict()
    assert largest == pytest.approx({3: 0.0, 4: 0.1, 5: 0.0}, abs=1e-9)
    assert STUDY.build(runs, runs).headline.endswith("1 4D run")
