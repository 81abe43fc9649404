"""The judging of nights on series whose truth is known."""

import math

import numpy as np
import pytest

from reports.nights import evidence
from reports.nights.changes import changes, what_changed
from reports.nights.culprit import culprit
from reports.nights.evidence import Expected, from_nights, from_reference, interval, strongest
from reports.nights.figures import is_judged
from reports.nights.history import NightJob
from reports.nights.judge import alarm_limit, discovered
from reports.nights.reference import reference_of, weighted_median
from reports.nights.verdicts import Verdict
from reports.nights.watch import Watch
from systems.references import Key, Reference, worse_by

LIMIT = alarm_limit(200)


def noise(scale: float, nights: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, scale, nights)


def watch(scale: float = 0.01, quiet: int = 80, seed: int = 0, limit: float = LIMIT) -> Watch:
    """After so many quiet nights of a job each."""
    found = Watch(Expected(0.0, scale, scale / 4, 8.0, 20), limit)
    for value in noise(scale, quiet, seed):
        found.add([float(value)])
    return found


def test_one_bad_job_is_no_alarm_however_bad():
    assert watch().add([1.0]) is None


def test_a_bad_job_is_worth_another_one_and_a_usual_one_is_not():
    following = watch()
    assert following.looks_worse([0.2])
    assert not following.looks_worse([0.005])
    assert not following.looks_worse([0.2, 0.0, 0.0])


def bad(following: Watch, level: float = 0.2) -> tuple[int, bool, float, float] | None:
    """Three bad nights of three jobs each; returns the alarm of the last one, which is the first with 200 figures."""
    for _ in range(2):
        assert following.add([level, level + 0.01, level - 0.01]) is None
    return following.add([level, level + 0.01, level - 0.01])


def test_one_bad_night_is_no_alarm_and_several_are_that_begins_with_the_first():
    alarm = bad(watch())
    assert alarm is not None
    since, new, effect, chance = alarm
    assert (since, new) == (80, True)
    assert effect == pytest.approx(math.expm1(0.2), rel=0.1)
    assert chance < LIMIT


def test_five_per_cent_of_noise_of_one_per_cent_are_an_alarm_within_three_nights():
    following = watch()
    alarms = [following.add([0.05, 0.048, 0.052]) for _ in range(3)]
    assert alarms[-1] is not None


def test_an_alarm_stays_until_two_nights_are_fine_again_and_can_come_again():
    following = watch()
    bad(following)
    assert following.add([0.2])[:2] == (80, False)
    assert following.add([0.0])[:2] == (80, False)
    assert following.add([0.0]) is None
    following.add([0.0])
    assert bad(following)[:2] == (87, True)


def test_of_few_figures_a_second_bad_night_is_enough():
    following = watch(limit=alarm_limit(3))
    assert following.add([0.2, 0.21, 0.19]) is None
    assert following.add([0.2, 0.21, 0.19])[:2] == (80, True)


def test_what_the_nights_before_have_shown_as_often_is_no_alarm():
    following = watch(quiet=40)
    for night in range(50):
        following.add([0.2, 0.2, 0.2] if night % 5 == 0 else [0.0])
    assert [following.add([0.2, 0.2, 0.2]) for _ in range(3)] == [None] * 3


def test_a_relapse_after_a_long_alarm_is_found():
    following = watch(quiet=100)
    bad(following)
    for value in noise(0.01, 60, seed=5):
        following.add([0.2 + float(value)])
    for value in noise(0.01, 12, seed=6):
        following.add([float(value)])
    assert following.looks_worse([0.2])
    assert bad(following)[1]


def test_what_gets_worse_still_while_an_alarm_is_open_is_an_alarm_of_its_own():
    following = watch()
    bad(following)
    for value in noise(0.01, 10, seed=3):
        assert following.add([0.2 + float(value)])[:2] == (80, False)
    assert following.add([0.4] * 3)[:2] == (80, False)
    (new,) = {alarm for alarm in (following.add([0.4] * 3) for _ in range(2)) if alarm[1]}
    assert new[0] in (92, 93)
    following.add([0.4] * 3)
    assert following.looks_worse([0.6])
    assert not following.looks_worse([0.4])
    following.add([0.2])
    assert following.add([0.2])[:2] == (80, False)
    following.add([0.0])
    assert following.add([0.0]) is None


def test_an_alarm_of_noise_that_is_wide_ends_when_half_of_it_is_gone():
    following = watch(scale=0.02)
    assert bad(following, 0.3)
    assert following.add([0.03])
    assert following.add([0.03]) is None


def test_what_is_better_is_no_alarm():
    following = watch()
    assert [following.add([-0.3] * 5) for _ in range(5)] == [None] * 5


def test_a_change_below_two_per_cent_is_no_alarm_however_sure():
    following = watch(scale=0.0005)
    assert [following.add([0.015] * 5) for _ in range(12)] == [None] * 12


def test_the_limit_falls_with_the_number_of_figures():
    assert alarm_limit(200) == pytest.approx(0.5 / 365 / 200)
    assert alarm_limit(0) == alarm_limit(1)


def test_a_drift_is_taken_out_of_what_is_expected():
    drifting = 0.0003 * np.arange(90) + noise(0.005, 90)
    usual = from_nights(drifting, 12)
    assert usual.level == pytest.approx(0.0003 * (89 + 12), abs=3 * usual.error)
    assert usual.scale == pytest.approx(0.005, rel=0.4)


def test_a_drift_that_noise_alone_would_make_is_hardly_believed():
    expected = [from_nights(noise(0.04, 28, seed=seed), 12) for seed in range(20)]
    assert max(abs(usual.level) for usual in expected) < 0.04
    assert all(usual.error < 0.02 for usual in expected)


def test_after_a_night_that_looked_worse_the_next_one_is_run_again_sooner():
    following = watch(scale=0.02)
    assert not following.looks_worse([0.032])
    following.add([0.09])
    assert following.looks_worse([0.032])
    assert not following.looks_worse([0.0])


def test_outliers_and_a_step_faster_than_any_drift_move_the_expectation_little():
    values = noise(0.005, 60)
    values[[5, 23, 41, 58]] += 0.5
    assert from_nights(values, 1).level == pytest.approx(0, abs=0.006)
    slope = from_nights(np.array([0.1 * night for night in range(60)]), 1).level - 0.1 * 29.5
    assert 0 <= slope <= 1.05 * evidence.MOST_DRIFT * 30.5


def test_the_chance_of_evidence_is_a_bound_on_what_noise_gives():
    """Of nights without a change, with outliers, judged by the references of 20 such nights, so small a chance is
    reported at most about as often as it says.
    """
    random = np.random.default_rng(3)
    trials, least = 3000, 3e-3

    def drawn(count: int) -> list[list[float]]:
        off = np.where(random.random((count, 1)) < evidence.OFF, 0.3, 0)
        return (random.normal(0, 0.02, (count, 1)) + off).tolist()

    hits = 0
    for _ in range(trials):
        known = reference_of("s", [[math.exp(night[0])] for night in drawn(20)])
        hits += strongest(drawn(6), from_reference(known)).chance < least
    assert 0 < hits < 6 * least * trials  # at most six windows


def test_more_jobs_make_the_interval_and_the_smallest_visible_change_smaller():
    usual = from_reference(Reference(unit="s", median=1.0, mad=0.01, within=0.01, jobs=40, nights=40))
    assert evidence.interval(usual, 9) < evidence.interval(usual, 3) < evidence.interval(usual, 1)
    assert evidence.visible(usual, 9, 0.05) < evidence.visible(usual, 1, 0.05)
    assert evidence.visible(usual, 1, 0.05) > evidence.interval(usual, 1)


def test_jobs_that_differ_no_less_than_nights_make_no_interval_smaller():
    nights = from_reference(Reference(unit="s", median=1.0, mad=0.01, jobs=40, nights=40))
    assert evidence.interval(nights, 9) == evidence.interval(nights, 1)
    assert evidence.visible(nights, 1, 0.05 / 200) > evidence.visible(nights, 1, 0.05)


def test_a_reference_of_few_nights_tells_less_than_one_of_many():
    few, many = (Reference(unit="s", median=1.0, mad=0.01, within=0.005, jobs=21, nights=nights) for nights in (7, 21))
    assert evidence.interval(from_reference(few), 3) > 1.2 * evidence.interval(from_reference(many), 3)
    assert from_reference(few).freedom < from_reference(many).freedom


def test_in_a_reference_every_night_counts_the_same_however_often_it_was_run():
    steady = [[1.0 + 0.001 * (number % 5)] for number in range(20)]
    bad = [[1.5] * 5] * 5
    assert reference_of("s", [*steady, *bad]).median == pytest.approx(1.002, abs=0.0015)
    assert reference_of("s", [*steady, *bad]).jobs == 45


def test_a_reference_tells_jobs_of_a_night_from_nights():
    random = np.random.default_rng(4)
    nights = [
        [100 * math.exp(level + random.normal(0, 0.002)) for _ in range(3)] for level in random.normal(0, 0.02, 40)
    ]
    found = reference_of("s", nights)
    assert found.within == pytest.approx(100 * 0.002 / evidence.SCALE_OF_MAD, rel=0.3)
    assert found.mad == pytest.approx(100 * 0.02 / evidence.SCALE_OF_MAD, rel=0.4)
    assert reference_of("s", [[night[0]] for night in nights]).within is None


def test_a_weighted_median_has_half_of_the_weight_on_either_side():
    values = np.array([3.0, 1.0, 2.0, 4.0])
    assert weighted_median(values, np.ones(4)) == 2.5
    assert weighted_median(values[:3], np.ones(3)) == 2.0
    assert weighted_median(values, np.array([5.0, 1, 1, 1])) == 3.0


def verdict(number: int, p: float) -> Verdict:
    word = "slower" if p < 0.05 else "same"
    return Verdict(Key("", str(number), "", "", 1, "", ""), "f", "s", word, 1, p=p)


def test_of_many_figures_only_those_are_called_slower_that_benjamini_and_hochberg_allow():
    def called(*p: float) -> list[str]:
        found = discovered([verdict(number, one) for number, one in enumerate(p)])
        return [one.key.test for one in found if one.word == "slower"]

    assert called(0.04) == ["0"]
    assert called(0.04, *[0.5] * 99) == []
    assert called(0.0004, *[0.5] * 99) == ["0"]
    assert called(0.009, 0.019, 0.029, 0.5, 0.5) == ["0", "1", "2"]  # each alone would be too likely


SCALES = (0.003, 0.006, 0.01, 0.015)
"""Of jobs' noise: those of which ci/README.md speaks. At the last one alone are about 1.4 times the alarms promised."""


def test_a_minority_of_nights_is_no_evidence_however_bad_it_is():
    usual = Expected(0.0, 0.1, 0.02, 22.0, 60)

    def chance(*nights: float) -> float:
        return strongest([[night] * 3 for night in nights], usual).chance

    little = chance(0.03, 0.03, 0.03, 0.03, 0.03)
    assert chance(0.03, 2.0, 2.0, 0.03, 0.03) == pytest.approx(little)
    assert chance(0.03, 2.0, 2.0, 2.0, 0.03) < little / 10


@pytest.mark.parametrize("nights", [10, 30])
def test_a_gain_that_lasted_is_usual_so_that_its_loss_is_an_alarm(nights: int):
    following = watch(quiet=100, limit=alarm_limit(20))
    values = noise(0.01, 3 * (nights + 5), seed=nights).reshape(-1, 3)
    values[:nights] -= math.log1p(0.05)
    new = [at for at, night in enumerate(values) if (alarm := following.add(list(night))) and alarm[1]]
    assert new
    assert new[0] >= nights


def test_a_few_good_nights_are_luck_after_which_what_is_usual_is_no_alarm():
    following = watch(quiet=100, limit=alarm_limit(20))
    values = noise(0.01, 60, seed=8).reshape(20, 3)
    values[:3] -= math.log1p(0.05)
    assert not any(following.add(list(night)) for night in values)


def test_jobs_of_few_nights_do_not_tell_how_nights_differ():
    of_one, of_many = (
        from_reference(Reference(unit="s", median=1.0, mad=0.003, within=0.003, jobs=20, nights=nights))
        for nights in (1, 20)
    )
    assert interval(of_many, 3) < 0.01
    assert interval(of_one, 3) > 0.02


def test_change_points_are_found_with_their_size_and_outliers_are_none():
    values = np.exp(noise(0.01, 120, seed=2))
    values[[10, 30, 31, 90]] *= 1.6
    values[70:] *= 1.08
    (one,) = changes(list(values))
    assert abs(one.at - 70) <= 1
    assert one.change == pytest.approx(0.08, abs=0.01)
    assert changes(list(np.exp(noise(0.01, 120, seed=4)))) == []
    assert changes([1.0] * 5) == []


def test_a_drift_has_no_change_points():
    drifting = np.arange(400) * 0.01 / 30
    assert changes(list(np.exp(drifting + noise(0.003, 400)))) == []
    drifting[300:] += math.log(1.05)
    (one,) = changes(list(np.exp(drifting + noise(0.003, 400))))
    assert one.at == 300
    assert one.change == pytest.approx(0.05, abs=0.01)


def test_what_changed_is_what_was_never_so_before():
    before = [{"torch": "2.9", "nodes": "a"}, {"torch": "2.9", "nodes": "b"}]
    since = [{"torch": "2.10", "nodes": "b", "modules": "nccl"}]
    assert what_changed(before, since) == ["torch 2.9 -> 2.10", "modules unset -> nccl"]
    assert what_changed([], since) == []
    assert what_changed(before, [{"nodes": "c, a"}, {"nodes": "c, d"}])[0] == "nodes: c was not among them before"
    assert what_changed(before, [{"nodes": "c"}, {"nodes": "d"}])[-1] != "nodes: c was not among them before"


def a_job(**parts: float) -> NightJob:
    """parts: what__which, as history.NightJob.parts has it."""
    told = {tuple(name.split("__")) if "__" in name else (name, ""): value for name, value in parts.items()}
    key = Key("cpu", "WeakScaling", "", "2x1x1x1", 2, "fp32", "")
    return NightJob(key, "n", None, False, "", {}, {}, told, (), 0.0)  # type: ignore[arg-type]


USUAL = {"compute": 1.0, "exposed__x": 0.2, "exposed__data": 0.1, "host__n0": 1.0, "host__n1": 1.0, "rate__x": 1e8}


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"compute": 1.3}, "compute: it takes +23.1 % of a step longer"),
        ({"compute": 1.3, "peak": 5e10}, "matrix products alone, whose rate fell by 50.0 %"),
        ({"exposed__x": 0.35, "compute": 1.01}, "the link: exposed communication along axis x"),
        ({"exposed__x": 0.35, "rate__x": 8e7}, "what the link carries along it fell by 20.0 %"),
        ({"exposed__data": 0.4}, "along axis data"),
        ({"host__n1": 1.6, "exposed__x": 0.8}, "one node: n1 computes +60.0 % longer"),
        ({"host__n0": 1.5, "host__n1": 1.5, "compute": 1.5}, "compute"),
        ({}, ""),
    ],
)
def test_the_culprit_is_named(now, named):
    before = [a_job(**USUAL, peak=1e11)] * 3
    found = culprit("WeakScaling", [a_job(**({**USUAL, "peak": 1e11} | now))], before)
    assert named in found if named else not found


def test_a_slow_node_is_named_although_every_night_has_other_nodes():
    before = [a_job(compute=1.0, **{f"host__a{night}": 1.0, f"host__b{night}": 1.02}) for night in range(5)]
    slow = a_job(compute=1.4, host__x=1.0, host__y=1.4, host__z=1.01)
    assert "one node: y computes +39.3 % longer than the others" in culprit("WeakScaling", [slow], before)
    once = a_job(compute=1.08, host__x=1.0, host__y=1.2, host__z=1.01)
    others = [a_job(compute=1.08, **{f"host__c{night}": 1.08, f"host__d{night}": 1.09}) for night in range(5)]
    assert "one node" not in culprit("WeakScaling", [once, *others], before)
    known = [a_job(**USUAL)] * 3
    assert "one node: n9" in culprit(
        "WeakScaling", [a_job(compute=1.6, host__n0=1.0, host__n1=1.0, host__n9=1.6)], known
    )
    like_ever = a_job(compute=1.4, host__x=1.4, host__y=1.42)
    assert "one node" not in culprit("WeakScaling", [like_ever], before)


def test_a_test_of_one_thing_names_it():
    assert "the link" in culprit("Bandwidth", [a_job()], [a_job()])
    assert "compute" in culprit("Peak", [a_job()], [a_job()])


@pytest.mark.parametrize(
    ("figure", "unit", "judged"),
    [
        ("time_per_iteration", "s", True),
        ("hardware_flops_per_s", "flop/s", False),
        ("best_flops_per_s", "flop/s", True),
        ("compute", "s", False),
        ("half_size", "B", False),
        ("paired_ratio_low", "x", False),
        ("paired_ratio", "x", True),
        ("communication_hidden", "%", False),
        ("speed_up_oar_ors", "x", False),
        ("step_by_bound", "x", False),
        ("step_by_bound_none", "x", False),
    ],
)
def test_figures_are_judged_once_each(figure, unit, judged):
    assert is_judged(figure, unit, frozenset({figure, "time_per_iteration"})) == judged


def test_which_way_is_worse():
    assert (worse_by("s"), worse_by("flop/s"), worse_by("%")) == (1, -1, 0)
