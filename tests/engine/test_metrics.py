"""Every derived figure: by hand on small numbers."""

import math

import pytest

from engine.result import metrics
from engine.result.gate import NOTHING_KNOWN, over_jobs, over_rounds
from engine.result.schema.contest import Ratio


def test_rates_shares_and_ratios() -> None:
    assert metrics.time_per_iteration([1.0, 2.0, 6.0]) == pytest.approx(3.0)
    assert metrics.utilisation(metrics.rate(300.0, 2.0), 3, 100.0) == pytest.approx(0.5)
    assert metrics.gemm_rate(10, 3, 2.0) == pytest.approx(3000.0)
    assert metrics.efficiency(metrics.per_device(80.0, 4), metrics.per_device(25.0, 1)) == pytest.approx(0.8)
    assert metrics.time_to_solution(2e12, 1e6) == pytest.approx(2e6)
    assert metrics.speed_up(3.0, 2.0) == pytest.approx(1.5)
    assert metrics.saved(3.0, 2.0) == pytest.approx(1 / 3)
    assert metrics.step_by_bound(3.0, 2.0) == pytest.approx(1.5)


def test_the_faster_half_has_as_many_steps_as_the_slower_one_or_one_more() -> None:
    assert metrics.faster_half([4.0, 1.0, 9.0, 2.0]) == pytest.approx(1.5)
    assert metrics.faster_half([4.0, 1.0, 9.0]) == pytest.approx(2.5)
    assert metrics.faster_half([3.0]) == pytest.approx(3.0)


def test_every_wait_counts_as_exposed() -> None:
    """1 s hidden of an all-reduce of 5 s is a fifth, whoever says that the rest could not be avoided."""
    assert metrics.share_hidden(1.0, 4.0) == pytest.approx(0.2)
    assert metrics.share_hidden(0.0, 0.0) is None


def test_a_bound_is_the_longer_of_work_and_wire() -> None:
    assert metrics.bound(2.0, 1.5) == pytest.approx(2.0)
    assert metrics.bound(2.0, 2.5) == pytest.approx(2.5)
    assert metrics.bound_on_shared_cores(8.0, 2, 1.0) == pytest.approx(4.0)
    assert metrics.bound_on_shared_cores(8.0, 2, 5.0) == pytest.approx(5.0)


def test_a_gain_is_told_of_the_greatest_and_a_bound_that_overlap_made_longer_does_not_flatter_it() -> None:
    assert metrics.share_of_greatest_gain(2 / 3, 3.0, 1.0, 1.0) == pytest.approx(0.5)
    assert metrics.share_of_greatest_gain(2 / 3, 3.0, 2.0, 1.0) == pytest.approx(0.5)
    assert metrics.share_of_greatest_gain(2 / 3, 3.0, 0.5, 1.0) == pytest.approx(0.4)
    assert metrics.share_of_greatest_gain(1.1, 3.0, 1.5, 1.5) == pytest.approx(-0.2)
    assert metrics.share_of_greatest_gain(1.1, 3.0, 3.0, 3.0) is None


def test_curves_differ_by_their_worst_step_and_what_is_no_number_differs_without_bound() -> None:
    difference, step = metrics.curve_difference([1.0, 2.2, 3.0], [1.0, 2.0, 3.0])
    assert (difference, step) == (pytest.approx(0.1), 1)
    assert metrics.curve_difference([1.0, math.nan, 9.0], [1.0, 2.0, 3.0]) == (math.inf, 1)
    with pytest.raises(ValueError, match="longer"):
        metrics.curve_difference([1.0], [1.0, 2.0])


def test_a_drift_that_both_sides_share_cancels_in_a_paired_ratio() -> None:
    drifting = [(0.8 * speed, speed) for speed in (1.0, 2.0, 5.0, 9.0, 3.0, 4.0)]
    assert metrics.paired([drifting]).ratio == pytest.approx(0.8)
    assert metrics.paired([drifting]).interval == pytest.approx((0.8, 0.8))


def test_the_interval_of_one_job_is_over_its_rounds_and_not_known_of_fewer_than_six() -> None:
    rounds = [(1.0 + 0.01 * (i % 5), 1.0) for i in range(9)]
    told = metrics.paired([rounds, []])
    assert told == (metrics.paired_ratio(rounds), over_rounds([time_s for time_s, _ in rounds]))
    assert metrics.paired([rounds[:5]]).interval == NOTHING_KNOWN
    with pytest.raises(ValueError, match="at least one round"):
        metrics.paired([[]])


def test_of_several_jobs_only_their_medians_count_and_their_rounds_do_not_narrow_the_interval() -> None:
    low, high = [(0.9, 1.0)] * 2 + [(7.0, 1.0)], [(1.1, 1.0)] * 40
    told = metrics.paired([low, high])
    assert told.ratio == pytest.approx(math.sqrt(0.9 * 1.1))
    assert told.interval == over_jobs([0.9, 1.1])
    assert told.interval.low < 0.5, "two jobs that differ tell little"


def test_an_interval_that_is_not_known_is_written_as_such_and_read_again() -> None:
    unknown = Ratio.of(metrics.paired([[(1.0, 2.0)]]))
    assert (unknown.low, unknown.high, str(unknown)) == (None, None, "0.500 (interval not known)")
    assert Ratio.model_validate_json(unknown.model_dump_json()).interval == NOTHING_KNOWN
    known = Ratio.of(metrics.paired([[(1.0, 2.0)], [(1.0, 2.0)]]))
    assert Ratio.model_validate_json(known.model_dump_json()).interval == pytest.approx((0.5, 0.5))
