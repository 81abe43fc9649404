"""Every derived figure: by hand on small numbers."""

import math

import pytest

from engine.result import metrics


def test_rates_shares_and_ratios() -> None:
    assert metrics.time_per_iteration([1.0, 2.0, 6.0]) == pytest.approx(3.0)
    assert metrics.utilisation(metrics.rate(300.0, 2.0), 3, 100.0) == pytest.approx(0.5)
    assert metrics.gemm_rate(10, 3, 2.0) == pytest.approx(3000.0)
    assert metrics.efficiency(metrics.per_device(80.0, 4), metrics.per_device(25.0, 1)) == pytest.approx(0.8)
    assert metrics.time_to_solution(2e12, 1e6) == pytest.approx(2e6)
    assert metrics.speed_up(3.0, 2.0) == pytest.approx(1.5)
    assert metrics.saved(3.0, 2.0) == pytest.approx(1 / 3)
    assert metrics.step_by_bound(3.0, 2.0) == pytest.approx(1.5)


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
    drifting = [(0.8 * speed, speed) for speed in (1.0, 2.0, 5.0, 9.0, 3.0)]
    told = metrics.paired([drifting])
    assert tuple(told) == pytest.approx((0.8, 0.8, 0.8))


def test_an_interval_holds_the_ratio_is_the_same_each_time_and_grows_with_the_scatter() -> None:
    quiet = [(1.0 + 0.01 * (i % 3), 1.0) for i in range(9)]
    noisy = [(1.0 + 0.1 * (i % 3), 1.0) for i in range(9)]
    assert metrics.paired([quiet]) == metrics.paired([quiet])
    for rounds in (quiet, noisy):
        told = metrics.paired([rounds])
        assert told.low <= told.ratio <= told.high
        assert min(t for t, _ in rounds) <= told.low
        assert told.high <= max(t for t, _ in rounds)
    widths = [metrics.paired([rounds]).high - metrics.paired([rounds]).low for rounds in (quiet, noisy)]
    assert widths[0] < widths[1]


def test_jobs_that_differ_widen_the_interval_more_than_their_rounds_do() -> None:
    """Rounds of one process agree; what another process would measure is only known from another one."""
    low, high = [(0.9, 1.0)] * 20, [(1.1, 1.0)] * 20
    told = metrics.paired([low, high])
    assert (told.low, told.high) == (pytest.approx(0.9), pytest.approx(1.1))
    with pytest.raises(ValueError, match="at least one round"):
        metrics.paired([[]])
