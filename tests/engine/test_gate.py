import math
import random

import pytest
from scipy import stats

from engine.result.gate import NOTHING_KNOWN, Interval, all_of, at_least, at_most, over_jobs, over_rounds, within

BELOW, ACROSS, ABOVE = Interval(0.8, 0.9), Interval(0.9, 1.1), Interval(1.01, 1.2)


def test_a_limit_is_kept_broken_or_neither_by_the_whole_interval() -> None:
    assert [at_most(of, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["pass", "undecided", "fail"]
    assert [at_least(of, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["fail", "undecided", "pass"]
    assert [within(of, 0.85, 1.0) for of in (BELOW, ACROSS, ABOVE)] == ["undecided", "undecided", "fail"]
    assert within(BELOW, 0.8, 0.9) == "pass"


def test_what_is_not_a_number_or_not_known_is_undecided() -> None:
    for unknown in (Interval(math.nan, math.nan), NOTHING_KNOWN):
        assert at_most(unknown, 1.0) == at_least(unknown, 1.0) == within(unknown, 0.5, 2.0) == "undecided"


def test_several_gates_pass_together_only() -> None:
    assert all_of("pass", "pass") == "pass"
    assert all_of("pass", "undecided") == "undecided"
    assert all_of("pass", "undecided", "fail") == "fail"
    assert all_of() == "undecided"


@pytest.mark.parametrize("number", [2, 3, 6, 10, 31])
def test_an_interval_over_jobs_is_students_of_their_logarithms(number: int) -> None:
    ratios = [math.exp(0.01 * (index * 7 % 5)) for index in range(number)]
    logs = [math.log(ratio) for ratio in ratios]
    low, high = stats.t.interval(0.95, number - 1, loc=sum(logs) / number, scale=stats.sem(logs))
    assert over_jobs(ratios) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-4)


@pytest.mark.parametrize("looks", [1, 3, 5])
def test_each_of_several_looks_is_surer(looks: int) -> None:
    ratios = [1.0, 1.1, 1.3, 1.2]
    logs = [math.log(ratio) for ratio in ratios]
    low, high = stats.t.interval(1 - 0.05 / looks, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    assert over_jobs(ratios, looks) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)
    many = [float(index) for index in range(30)]
    left_out = int(over_rounds(many, looks).low)
    assert 2 * stats.binom.cdf(left_out, 30, 0.5) <= 0.05 / looks < 2 * stats.binom.cdf(left_out + 1, 30, 0.5)


def test_one_job_or_five_rounds_tell_nothing() -> None:
    assert over_jobs([0.5]) == over_jobs([]) == over_rounds([0.5] * 5) == NOTHING_KNOWN


def test_one_job_or_two_speak_by_what_jobs_usually_differ_and_more_by_their_own() -> None:
    reach = 0.01 * stats.norm.ppf(0.975)
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
    """Of a ratio that is just at its limit: either answer is wrong."""
    drawing, wrong = random.Random(1), 0
    for _ in range(2000):
        ratios: list[float] = []
        while len(ratios) < 6:
            ratios.append(math.exp(drawing.gauss(0, spread)))
            if at_most(over_jobs(ratios, 6, usual=0.01), 1.0) != "undecided":
                wrong += 1
                break
    assert wrong / 2000 <= 0.05


@pytest.mark.parametrize("number", [6, 8, 9, 12, 30])
def test_an_interval_over_rounds_leaves_out_as_many_as_chance_allows(number: int) -> None:
    ratios = [float(index) for index in range(number)]
    low, high = over_rounds(ratios[::-1])
    left_out = int(low)
    assert high == number - 1 - left_out
    assert 2 * stats.binom.cdf(left_out, number, 0.5) <= 0.05 < 2 * stats.binom.cdf(left_out + 1, number, 0.5)
