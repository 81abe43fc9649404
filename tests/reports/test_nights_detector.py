"""Detector of changes from night to night: it finds what it must, and takes no noise for a change."""

import math

import numpy as np
import pytest
import simulate_nights as simulated

from engine.result.gate import at_most
from reports.nights import detector
from reports.nights.detector import Follower, LevelChange, false_alarm_limit
from systems.references import LEAST

LIMIT = false_alarm_limit(200)
QUIET = 110
"""Nights before anything happens."""


def followed(
    *levels: float, scale: float = 0.01, seed: int = 0, canary: float = 0.0, quiet: int = QUIET, limit: float = LIMIT
) -> tuple[Follower, list[LevelChange | None]]:
    """Nights of noise, then nights at these levels; what each of the latter shows. canary: its share of the levels."""
    random = np.random.default_rng(seed)
    watched, found = Follower(limit), []
    for night in range(quiet + len(levels)):
        level = levels[night - quiet] if night >= quiet else 0.0
        mood = float(random.normal(0, scale))
        jobs = [level + mood + float(random.normal(0, scale / 10))]
        shown = watched.add(jobs, [mood + canary * level] if canary else [])
        found.append(shown)
    assert not any(found[:quiet])
    return watched, found[quiet:]


@pytest.mark.parametrize("bad", [0.05, 0.2, 5.0, -0.2])
@pytest.mark.parametrize("nights", [(1,), (1, 1), (1, 0, 1)])
@pytest.mark.parametrize("limit", [LIMIT, false_alarm_limit(1)])
def test_two_bad_nights_prove_nothing_however_bad_they_are(nights: tuple[int, ...], bad: float, limit: float) -> None:
    assert not any(followed(*(bad * night for night in nights), *[0.0] * 12, limit=limit)[1])
    assert limit == LIMIT or any(followed(*[bad] * 10, limit=limit)[1])


def test_two_bad_nights_before_a_usual_level_are_no_gain_where_nights_are_autocorrelated() -> None:
    found = 0
    for seed in range(200):
        values = simulated.autocorrelated(95, 0.8, 0.01, np.random.default_rng(seed))
        values[-7:-5] += 0.3
        found += detector.find_step(values, false_alarm_limit(1)) is not None
    assert found <= 6


@pytest.mark.parametrize(("quiet", "slower"), [(25, 0.1), (40, 0.08), (60, 0.06)])
def test_a_lasting_slowdown_of_the_first_nights_is_found_before_it_is_taken_for_noise(
    quiet: int, slower: float
) -> None:
    found = [followed(*[slower] * 30, scale=0.015, seed=seed, quiet=quiet)[0].worse for seed in range(10)]
    assert sum(map(bool, found)) >= 8


def test_nights_enough_are_kept_for_the_longest_window() -> None:
    tried = []
    with pytest.MonkeyPatch.context() as patch:
        z_scores = detector._z_scores
        patch.setattr(detector, "_z_scores", lambda *args: tried.append((len(args[0]), args[2])) or z_scores(*args))
        followed(*[0.0] * 60)
    assert tried[-1] == (detector.BASELINE + detector.WINDOWS[-1], detector.WINDOWS[-1])


def test_several_bad_nights_are_a_change_that_began_with_the_first_of_them() -> None:
    watched, found = followed(*[0.1] * 8)
    assert [one for one in found if one]
    (opened,) = watched.worse
    assert opened.since == QUIET
    assert opened.size == pytest.approx(0.1, rel=0.15)


def test_a_change_below_two_per_cent_is_none_however_sure() -> None:
    assert not any(followed(*[0.9 * LEAST] * 30, scale=0.001)[1])
    assert any(followed(*[1.5 * LEAST] * 30, scale=0.001)[1])


def test_neither_a_minority_of_bad_nights_nor_a_drift_is_a_change() -> None:
    assert not any(followed(*[1.0, 0.0, 0.0, 1.0, 0.0] * 6)[1])
    assert not any(followed(*(0.0003 * night for night in range(90)), scale=0.005)[1])


@pytest.mark.parametrize(
    ("levels", "since", "remaining"),
    [
        ([0.1] * 10 + [0.08] * 10, [0], [0.1]),
        ([0.1] * 10 + [0.01] * 10, [], []),
        ([0.12] * 12 + [0.08] * 12, [0], [0.08]),
        ([0.12] * 12 + [0.08] * 12 + [0.04] * 12, [], []),
        ([0.1] * 12 + [0.2] * 12, [0, 12], [0.1, 0.1]),
        ([0.1] * 12 + [0.2] * 12 + [0.06] * 12, [0], [0.06]),
        ([-0.1] * 12 + [0.0] * 12, [12], [0.1]),
    ],
)
def test_gains_undo_the_newest_alarm_first_by_half_or_more(
    levels: list[float], since: list[int], remaining: list[float]
) -> None:
    watched, _ = followed(*levels)
    assert [alarm.since - QUIET for alarm in watched.worse] == since
    assert [alarm.remaining for alarm in watched.worse] == pytest.approx(remaining, abs=0.012)


def test_autocorrelated_nights_tell_less() -> None:
    random = np.random.default_rng(1)
    alone, correlated = (detector.estimate_noise(simulated.autocorrelated(90, by, 0.01, random)) for by in (0.0, 0.7))
    assert correlated.rho > 0.5 > alone.rho
    assert correlated.innovation_scale < 0.9 * alone.innovation_scale
    before = simulated.autocorrelated(90, 0.7, 0.01, random)
    assert detector.find_step(np.append(before, before[-1] + np.full(8, 0.025)), LIMIT) is None
    shuffled = random.permutation(before)
    assert detector.find_step(np.append(shuffled, np.median(shuffled) + np.full(8, 0.025)), LIMIT)


def test_the_canary_explains_a_mood_and_what_it_does_not_share_is_left() -> None:
    random = np.random.default_rng(2)
    mood, own = simulated.autocorrelated(80, 0.7, 0.02, random), random.normal(0, 0.004, 80)
    left = mood + own - detector.canary_share(mood + own, mood + random.normal(0, 0.002, 80))
    assert np.std(left) < 0.3 * np.std(mood)
    assert np.max(np.abs(detector.canary_share(own, mood))) < 0.3 * np.std(own)
    assert not detector.canary_share(own, np.full(80, math.nan)).any()
    by_chance = [detector.canary_share(*random.normal(0, 0.01, (2, 80))) for _ in range(50)]
    assert sum(share.any() for share in by_chance) < 15


def test_a_night_without_the_canary_has_the_mood_of_the_nights_around_it() -> None:
    random = np.random.default_rng(4)
    mood = simulated.autocorrelated(80, 0.7, 0.02, random)
    canary = mood + random.normal(0, 0.002, 80)
    mood[-6:] += 0.3  # a machine that got slower
    canary[-6:] += 0.3
    canary[-4:] = math.nan
    canary[40] = math.nan
    left = mood - detector.canary_share(mood, canary)
    assert np.ptp(left) < 0.08
    watched = Follower(false_alarm_limit(1))
    for level, told in zip(mood, canary, strict=True):
        watched.add([level], [] if math.isnan(told) else [told])
    assert not watched.worse


def test_a_machine_that_got_slower_is_the_canarys_change_and_not_that_of_figures_that_share_it() -> None:
    assert any(followed(*[0.1] * 10)[1])
    assert not any(followed(*[0.1] * 10, canary=1.0)[1])


@pytest.mark.parametrize("size", [0.7, -0.7])
def test_a_machine_far_off_excuses_what_changed_by_less_and_makes_nothing_else_of_it(size: float) -> None:
    """Compute takes twice as long, and a step that half communicates half as long again."""
    random = np.random.default_rng(6)
    mood = random.normal(0, 0.01, 120)
    step, canary, steady = mood.copy(), mood + random.normal(0, 0.002, 120), mood.copy()
    canary[60:70] += size
    step[60:70] += size / 2
    for nights in (step, steady):
        left = nights - detector.canary_share(nights, canary)
        assert np.abs(left[60:70] - np.median(left)).max() < 0.05
    watched = Follower(false_alarm_limit(1))
    assert not any(watched.add([level], [told]) for level, told in zip(step, canary, strict=True))


def test_a_night_that_looks_worse_is_worth_another_job_and_a_usual_one_is_not() -> None:
    watched, _ = followed(0.0)
    assert watched.looks_worse([0.05])
    assert not watched.looks_worse([0.005])
    steady, _ = followed(0.0, scale=0.001)
    assert steady.looks_worse([1.1 * LEAST])
    assert not steady.looks_worse([0.9 * LEAST])
    shared, _ = followed(0.0, canary=1.0)
    assert shared.looks_worse([0.05], [0.0])
    assert not shared.looks_worse([0.05], [0.05])
    assert not Follower(LIMIT).looks_worse([1.0])  # nothing is known yet


@pytest.mark.parametrize("kind", ["rho-0.7", "common", "measured"])
def test_noise_alone_raises_few_alarms_and_many_with_a_limit_that_is_too_wide(kind: str) -> None:
    """Here are 20 figures for a year, or five; simulate_nights.py takes an hour."""
    found = {
        limit: sum(simulated.alarms(kind, 1, 20, 200, 1, limit, number) for number in range(figures))
        for limit, figures in ((LIMIT, 20), (0.5, 5))
    }
    assert found[LIMIT] == 0
    assert at_most(simulated.of_years(found[0.5], 5 * 200 / 365 / 20), simulated.MOST_A_YEAR) == "fail"


def test_slowdowns_are_found() -> None:
    found = sum(simulated.is_found("common", 0.05, 10, simulated.SETTLED, 3, LIMIT, number) for number in range(20))
    assert found >= 15


def test_the_measured_noise_is_of_this_projects_jobs_on_local_and_vcluster() -> None:
    noises = simulated.residuals()
    assert {name.split()[0] for name in noises} == {"local", "vcluster"}
    assert all(len(noise) >= 20 and 0.001 < np.std(noise) < 1 for noise in noises.values())
