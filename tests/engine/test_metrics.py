"""Metrics, by hand on small numbers, and intervals with the gates that judge them."""

import math
import random

import pytest
from scipy import stats

from engine.result import metrics
from engine.result.gate import (
    NOTHING_KNOWN,
    Interval,
    all_of,
    at_least,
    at_most,
    on_one_side,
    over_jobs,
    over_rounds,
    within,
)
from engine.result.schema.contest import Ratio


def test_rates_shares_ratios_and_bounds() -> None:
    assert metrics.time_per_iteration([1.0, 2.0, 6.0]) == pytest.approx(3.0)
    halves = [metrics.faster_half(times) for times in ([4.0, 1.0, 9.0, 2.0], [4.0, 1.0, 9.0], [3.0])]
    assert halves == pytest.approx([1.5, 2.5, 3.0])
    assert metrics.utilisation(metrics.rate(300.0, 2.0), 3, 100.0) == pytest.approx(0.5)
    assert metrics.gemm_rate(10, 3, 2.0) == pytest.approx(3000.0)
    assert metrics.efficiency(metrics.per_device(80.0, 4), metrics.per_device(25.0, 1)) == pytest.approx(0.8)
    assert metrics.time_to_solution(2e12, 1e6) == pytest.approx(2e6)
    assert metrics.speed_up(3.0, 2.0) == metrics.step_by_bound(3.0, 2.0) == pytest.approx(1.5)
    assert metrics.saved(3.0, 2.0) == pytest.approx(1 / 3)
    assert metrics.share_hidden(1.0, 4.0) == pytest.approx(0.2), "every wait counts as exposed"
    assert metrics.share_hidden(0.0, 0.0) is None
    assert [metrics.bound(2.0, lane_s) for lane_s in (1.5, 2.5)] == [2.0, 2.5]
    assert [metrics.bound_on_shared_cores(8.0, 2, link_s) for link_s in (1.0, 5.0)] == [4.0, 5.0]


@pytest.mark.parametrize(
    ("ratio", "bound_s", "bound_none_s", "share"),
    [
        (2 / 3, 1.0, 1.0, 0.5),
        (2 / 3, 2.0, 1.0, 0.5),
        (2 / 3, 0.5, 1.0, 0.4),
        (1.1, 1.5, 1.5, -0.2),
        (1.1, 3.0, 3.0, None),
    ],
)
def test_a_bound_that_overlap_made_longer_does_not_flatter_a_gain(
    ratio: float, bound_s: float, bound_none_s: float, share: float | None
) -> None:
    found = metrics.share_of_greatest_gain(ratio, 3.0, bound_s, bound_none_s)
    assert found == (None if share is None else pytest.approx(share))


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
    found = metrics.paired([rounds, []])
    assert found == (metrics.paired_ratio(rounds), over_rounds([time_s for time_s, _ in rounds]))
    assert metrics.paired([rounds[:5]]).interval == NOTHING_KNOWN
    with pytest.raises(ValueError, match="at least one round"):
        metrics.paired([[]])


def test_of_several_jobs_only_their_medians_count_and_their_rounds_do_not_narrow_the_interval() -> None:
    low, high = [(0.9, 1.0)] * 2 + [(7.0, 1.0)], [(1.1, 1.0)] * 40
    found = metrics.paired([low, high])
    assert found.ratio == pytest.approx(math.sqrt(0.9 * 1.1))
    assert found.interval == over_jobs([0.9, 1.1])
    assert found.interval.low < 0.5, "two jobs that differ tell little"


def test_an_interval_that_is_not_known_is_written_as_such_and_read_again() -> None:
    unknown = Ratio.of(metrics.paired([[(1.0, 2.0)]]))
    assert (unknown.low, unknown.high, str(unknown)) == (None, None, "0.500 (interval not known)")
    assert Ratio.model_validate_json(unknown.model_dump_json()).interval == NOTHING_KNOWN
    known = Ratio.of(metrics.paired([[(1.0, 2.0)], [(1.0, 2.0)]]))
    assert Ratio.model_validate_json(known.model_dump_json()).interval == pytest.approx((0.5, 0.5))


BELOW, ACROSS, ABOVE = Interval(0.8, 0.9), Interval(0.9, 1.1), Interval(1.01, 1.2)


def test_a_limit_is_kept_broken_or_neither_by_the_whole_interval_and_several_pass_together_only() -> None:
    assert [at_most(of, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["pass", "undecided", "fail"]
    assert [at_least(of, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["fail", "undecided", "pass"]
    assert [on_one_side(of, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["pass", "undecided", "fail"]
    assert on_one_side(Interval(1.0, 1.0), 1.0) == on_one_side(NOTHING_KNOWN, 1.0) == "undecided"
    assert [within(of, 0.85, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["undecided", "undecided", "fail"]
    assert within(BELOW, 0.8, 0.9) == "pass"
    for unknown in (Interval(math.nan, math.nan), NOTHING_KNOWN):
        assert at_most(unknown, 1.0) == at_least(unknown, 1.0) == within(unknown, 0.5, 2.0) == "undecided"
    assert [all_of("pass", "pass"), all_of("pass", "undecided"), all_of()] == ["pass", "undecided", "undecided"]
    assert all_of("pass", "undecided", "fail") == "fail"


@pytest.mark.parametrize(("number", "looks"), [(2, 1), (3, 1), (4, 3), (6, 5), (10, 1), (31, 1)])
def test_an_interval_over_jobs_is_students_of_their_logarithms_surer_by_looks(number: int, looks: int) -> None:
    ratios = [math.exp(0.01 * (index * 7 % 5)) for index in range(number)]
    logs = [math.log(ratio) for ratio in ratios]
    low, high = stats.t.interval(1 - 0.05 / looks, number - 1, loc=sum(logs) / number, scale=stats.sem(logs))
    assert over_jobs(ratios, looks) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


@pytest.mark.parametrize(("number", "looks"), [(6, 1), (8, 1), (9, 1), (12, 1), (30, 1), (30, 3), (30, 5)])
def test_an_interval_over_rounds_leaves_out_as_many_as_chance_allows(number: int, looks: int) -> None:
    low, high = over_rounds([float(index) for index in range(number)][::-1], looks)
    left_out = int(low)
    assert high == number - 1 - left_out
    chances = [2 * stats.binom.cdf(place, number, 0.5) for place in (left_out, left_out + 1)]
    assert chances[0] <= 0.05 / looks < chances[1]
    assert over_jobs([0.5]) == over_jobs([]) == over_rounds([0.5] * 5) == NOTHING_KNOWN


def test_one_job_or_two_speak_by_what_jobs_usually_differ_and_more_by_their_own() -> None:
    reach = 0.01 * stats.norm.ppf(0.975)
    assert over_jobs([1.0, 1.0, 1.0], least=0.01) == pytest.approx(
        (math.exp(-reach / 3**0.5), math.exp(reach / 3**0.5))
    )
    assert over_jobs([0.9, 1.1], least=0.01) == over_jobs([0.9, 1.1])
    assert over_jobs([1.0], usual=0.01) == pytest.approx((math.exp(-reach), math.exp(reach)), rel=1e-9)
    two = 0.99, 1.0
    assert math.log(over_jobs(two, usual=0.01).high / over_jobs(two, usual=0.01).low) == pytest.approx(
        2 * reach / math.sqrt(2)
    )
    for own in ((0.9, 1.1), (0.99, 1.0, 1.01)):
        assert over_jobs(own, usual=0.01) == over_jobs(own), "they differ by more than is usual, or tell of their own"
    assert over_jobs([], usual=0.01) == NOTHING_KNOWN


@pytest.mark.parametrize("spread", [0.003, 0.01])
def test_six_looks_of_which_the_first_two_are_by_what_is_usual_are_seldom_wrong(spread: float) -> None:
    """Ratios are just at the limit: either answer is wrong."""
    drawing, wrong = random.Random(1), 0
    for _ in range(2000):
        ratios: list[float] = []
        while len(ratios) < 6:
            ratios.append(math.exp(drawing.gauss(0, spread)))
            if at_most(over_jobs(ratios, 6, usual=0.01), 1.0) != "undecided":
                wrong += 1
                break
    assert wrong / 2000 <= 0.05
