"""Detector of slowdowns from night to night: it finds what it must, and takes no noise for a change."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import simulate_nights as simulated
from noises import NOISES, Floats, autocorrelated, draw, residuals

from engine.result.gate import at_most
from reports.nights import detector, noise
from reports.nights.canary import canary_share
from reports.nights.detector import Detector, false_alarm_limit
from reports.nights.levels import FEWEST, KEPT
from reports.nights.shape import find_shape
from systems.references import LEAST

QUIET = 110
"""Nights before anything happens."""
ALONE = false_alarm_limit(1)


def follow(values: Floats, canary: Floats | None = None, limit: float = ALONE) -> Detector:
    """Follow figures (rows) through nights; NaN: not measured."""
    found = Detector([limit] * len(values))
    for night, jobs in enumerate(values.T):
        seconds = [] if canary is None or math.isnan(canary[night]) else [float(canary[night])]
        found.add(night, {at: ([float(value)], seconds) for at, value in enumerate(jobs) if not math.isnan(value)})
    return found


def explained(values: Floats, canary: Floats) -> Floats:
    """Return what the canary explains of one figure."""
    return canary_share(values[None], canary[None])[0]


def nights_of(*levels: float, scale: float = 0.01, seed: int = 0, quiet: int = QUIET) -> Floats:
    """Make nights of one figure: noise, and then nights at these levels."""
    random = np.random.default_rng(seed)
    return np.array([[*[0.0] * quiet, *levels]]) + random.normal(0, scale, (1, quiet + len(levels)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bad", [0.05, 0.2, 5.0])
@pytest.mark.parametrize("nights", [(1,), (1, 1), (1, 0, 1)])
@pytest.mark.parametrize("limit", [ALONE, false_alarm_limit(200)])
def test_two_bad_nights_prove_nothing_however_bad_they_are(nights: tuple[int, ...], bad: float, limit: float) -> None:
    followed = follow(nights_of(*(bad * night for night in nights), *[0.0] * 12), limit=limit)
    assert not followed.slowdowns
    assert not followed.gains


@pytest.mark.parametrize("size", [0.04, 0.1, 0.5])
def test_a_step_begins_with_its_first_night(size: float) -> None:
    (slowdown,) = follow(nights_of(*[size] * 12)).slowdowns
    assert slowdown.since == QUIET
    assert slowdown.found - QUIET < 8
    assert slowdown.size == pytest.approx(size, rel=0.15)
    assert slowdown.ended is None


@pytest.mark.parametrize(("quiet", "slower"), [(40, 0.08), (60, 0.06)])
def test_a_lasting_slowdown_of_the_first_nights_is_found(quiet: int, slower: float) -> None:
    found = 0
    for seed in range(5):
        values = np.random.default_rng(seed).normal(0, 0.015, (10, quiet + 30))
        values[3, quiet:] += slower
        found += [slowdown.figure for slowdown in follow(values, limit=false_alarm_limit(10)).slowdowns] == [3]
    assert found >= 4


def test_a_change_below_two_per_cent_is_none_however_sure() -> None:
    assert not follow(nights_of(*[0.9 * LEAST] * 30, scale=0.001)).slowdowns
    assert follow(nights_of(*[1.5 * LEAST] * 30, scale=0.001)).slowdowns


def test_what_comes_back_ends_by_itself_and_is_no_gain() -> None:
    followed = follow(nights_of(*[0.1] * 12, *[0.0] * 20))
    (slowdown,) = followed.slowdowns
    assert slowdown.returned
    assert slowdown.ended is not None
    assert QUIET + 12 < slowdown.ended < QUIET + 20
    assert not followed.gains
    values, now = nights_of(*[0.1] * 12, *[0.0] * 20)[0], np.array(followed.rows[0].values)
    assert now[:QUIET] == pytest.approx(values[:QUIET]), "nights before are moved back"
    assert now[QUIET : QUIET + 12] == pytest.approx(values[QUIET : QUIET + 12] - 0.1, abs=0.01), "and its own, too"


@pytest.mark.parametrize("figures", [1, 5], ids=["one", "all"])
def test_what_was_mended_hides_no_smaller_loss_later(figures: int) -> None:
    levels = [*[0.2] * 30, *[0.0] * 20, *[0.06] * 20]
    values = np.concatenate([nights_of(*levels, seed=seed) for seed in range(figures)])
    found = follow(values).slowdowns
    assert len(found) == 2 * figures
    assert {one.figure: one.since for one in found[figures:]} == pytest.approx(
        dict.fromkeys(range(figures), 160), abs=1
    )
    assert all(one.found - one.since < 8 for one in found)
    assert [one.size for one in found[:figures]] == pytest.approx([0.2] * figures, abs=0.01)


def test_a_slowdown_of_more_than_a_year_ends_when_it_is_mended() -> None:
    levels = [*[0.1] * (KEPT + 40), *[0.0] * 20, *[0.1] * 10]
    first, second = follow(nights_of(*levels)).slowdowns
    assert first.ended == pytest.approx(QUIET + KEPT + 40, abs=8)
    assert second.since == QUIET + KEPT + 60


def test_a_canary_that_is_slow_alone_makes_no_figure_better_and_then_worse() -> None:
    random = np.random.default_rng(3)
    mood = random.normal(0, 0.02, 200)
    values, canary = mood + random.normal(0, 0.003, (4, 200)), mood + random.normal(0, 0.002, 200)
    canary[120:140] += 0.06
    followed = follow(values, canary)
    assert not followed.slowdowns
    assert not followed.gains


def test_a_state_that_returns_a_second_time_raises_nothing_from_then_on() -> None:
    state = [0.1] * 8 + [0.0] * 20
    followed = follow(nights_of(*state * 3, 0.0))
    assert [one.since for one in followed.slowdowns] == [QUIET, QUIET + 28], "what came once may have been mended"
    worse = follow(nights_of(*state * 3, *[0.2] * 20))
    assert [one.since for one in worse.slowdowns] == [QUIET, QUIET + 28, QUIET + 84], (
        "what is worse than the state is found"
    )


def test_a_state_of_more_than_three_figures_is_known_of_the_others() -> None:
    random = np.random.default_rng(3)
    values = random.normal(0, 0.01, (8, 200))
    for figure in range(5):
        values[figure, 120 + 10 * figure : 126 + 10 * figure] += 0.1
    found = [slowdown.figure for slowdown in follow(values).slowdowns]
    assert found == [0, 1, 2, 3]


def test_three_figures_that_jump_hide_no_loss_of_the_others() -> None:
    random = np.random.default_rng(4)
    values = random.normal(0, 0.01, (40, 260))
    values[:3] = draw("sticky3", 3, 260, random)[0] * 6
    values[20, 230:] += 0.08
    assert 20 in {one.figure for one in follow(values, limit=false_alarm_limit(40)).slowdowns}


def test_what_a_retired_figure_did_counts_no_more() -> None:
    random = np.random.default_rng(4)
    values = random.normal(0, 0.01, (8, 260))
    values[:6] = draw("sticky3", 6, 260, random)[0] * 6
    values[:6, 180:] = math.nan
    values[7, 230:] += 0.08
    assert 7 in {one.figure for one in follow(values, limit=false_alarm_limit(8)).slowdowns}


def test_a_repair_of_a_part_raises_no_alarm_and_of_one_of_two_leaves_the_other_open() -> None:
    for left in (0.03, 0.05):
        (slowdown,) = follow(nights_of(*[0.1] * 40, *[left] * 30)).slowdowns
        assert (slowdown.ended, slowdown.size) == (None, pytest.approx(left, abs=0.01))
    both = follow(nights_of(*[0.05] * 30, *[0.15] * 30, *[0.1] * 20, *[0.0] * 30))
    assert [one.since - QUIET for one in both.slowdowns] == [0, 30]
    assert all(one.returned for one in both.slowdowns)
    assert not both.gains


def test_a_true_gain_is_one_and_a_later_loss_of_it_is_found() -> None:
    followed = follow(nights_of(*[-0.1] * 30, *[0.0] * 12))
    (gain,) = followed.gains
    assert (gain.since, gain.size) == (QUIET, pytest.approx(-0.1, rel=0.15))
    (slowdown,) = followed.slowdowns
    assert slowdown.since == QUIET + 30


def test_a_gain_that_is_soon_lost_was_none_and_its_end_is_no_loss() -> None:
    followed = follow(nights_of(*[-0.1] * 12, *[0.0] * 30))
    assert not followed.gains
    assert not followed.slowdowns
    for after in (0.05, 0.15):
        (slowdown,) = follow(nights_of(*[-0.1] * 12, *[after] * 30)).slowdowns
        assert slowdown.since == QUIET + 12


def test_a_step_on_a_step_is_another_slowdown_and_a_loss_that_creeps_is_one() -> None:
    steps = follow(nights_of(*[0.1] * 15, *[0.25] * 15))
    assert [one.since - QUIET for one in steps.slowdowns] == [0, 15]
    assert [one.size for one in steps.slowdowns] == pytest.approx([0.1, 0.15], rel=0.15)
    creep = nights_of(*(0.1 * night / 90 for night in range(100)))
    (slowdown,) = follow(creep).slowdowns
    assert slowdown.found - QUIET < 60
    assert slowdown.size > 0.05
    shape = find_shape(creep[0], 150)
    assert shape.kind == "creep"
    assert shape.low < 0.1 / 90 < shape.high
    assert shape.nights == pytest.approx(100, abs=30)


def test_a_part_that_comes_back_leaves_the_rest_open() -> None:
    (slowdown,) = follow(nights_of(*[0.12] * 15, *[0.08] * 25)).slowdowns
    assert slowdown.ended is None
    assert slowdown.size == pytest.approx(0.08, abs=0.015)


def test_what_is_not_measured_is_given_up() -> None:
    followed = follow(nights_of(*[0.1] * 10))
    followed.give_up(0, 200)
    (slowdown,) = followed.slowdowns
    assert (slowdown.ended, slowdown.returned) == (200, False)
    assert not followed.rows[0].open


def test_all_figures_at_once_are_found_as_one_alone_is() -> None:
    values = np.concatenate([nights_of(*[0.05] * 12, seed=seed) for seed in range(20)])
    found = follow(values).slowdowns
    assert {one.figure for one in found} == set(range(20))
    assert {one.since for one in found} <= {QUIET - 1, QUIET, QUIET + 1}


def test_figures_that_miss_nights_are_judged_by_those_they_have() -> None:
    values = np.concatenate([nights_of(*[0.1] * 20, seed=seed) for seed in range(3)])
    values[1, ::3] = np.nan
    values[2, :60] = np.nan
    assert sorted(one.figure for one in follow(values).slowdowns) == [0, 1, 2]
    assert follow(values).expected(1) is not None
    assert follow(values[:, :FEWEST]).expected(0) is None


def test_a_shape_is_a_step_or_a_slope() -> None:
    random = np.random.default_rng(5)
    flat = random.normal(0, 0.01, 120)
    step, creep = flat.copy(), flat.copy()
    step[-30:] += 0.05
    creep[-60:] += np.arange(60) * 0.001
    assert find_shape(step, 60).kind == "step"
    assert find_shape(step, 60).nights == 30
    shape = find_shape(creep, 80)
    assert shape.kind == "creep"
    assert shape.low < 0.001 < shape.high
    (slow,) = autocorrelated(1, 120, random, rho=0.9, scale=0.01)
    wide = find_shape(slow + np.maximum(np.arange(120) - 60, 0) * 0.001, 80)
    assert wide.high - wide.low > 1.5 * (shape.high - shape.low), "autocorrelation widens the interval"


@pytest.mark.parametrize(
    ("semivariogram", "variance"),
    [(np.ones(40), 1 / 5 + 1 / 20), (np.arange(40) / 2, 25 / 3 + 0.04), (1 - 0.8 ** np.arange(40), None)],
    ids=["independent", "random walk", "autocorrelated"],
)
def test_the_variance_of_a_difference_of_means_follows_from_the_semivariogram(
    semivariogram: Floats, variance: float | None
) -> None:
    weights = np.array([*[-1 / 20] * 20, *[1 / 5] * 5])
    apart = np.abs(np.subtract.outer(np.arange(25), np.arange(25)))
    direct = -float(weights @ np.where(apart, semivariogram[apart], 0.0) @ weights)
    at_lags = np.where(noise.LAGS < 40, semivariogram[np.minimum(noise.LAGS, 39)], np.nan)
    found = float(noise.contrast_variance(at_lags, 5, 20))
    assert found == pytest.approx(direct, rel=0.01)
    assert variance is None or found == pytest.approx(variance, rel=0.01)


def test_the_semivariogram_of_all_figures_is_that_of_their_noise() -> None:
    random = np.random.default_rng(1)
    nights = autocorrelated(300, 120, random, rho=0.7)
    scale = noise.scale(nights)
    mean = noise.mean_of(noise.semivariograms(nights, scale))[noise.LAGS < 60]
    expected = (1 - 0.7 ** noise.LAGS[noise.LAGS < 60]) / (1 - 0.7)
    assert mean == pytest.approx(expected, rel=0.1)
    assert np.mean(scale) == pytest.approx(0.015 * math.sqrt(0.3), rel=0.05)


def test_as_many_outliers_as_chance_gives_prove_nothing() -> None:
    assert [noise.most_outliers(window, 0.0, 1e-6) for window in (3, 8, 55)] == [2, 2, 2]
    assert noise.most_outliers(5, 0.05, 1e-6) == 4
    assert noise.most_outliers(3, 0.05, 1e-6) == 3
    assert noise.nights_around(0.0, 1e-6) == 5
    assert noise.nights_around(0.05, 1e-6) == 15
    values, _ = draw("out5", 40, 200, np.random.default_rng(2))
    assert np.mean(noise.outlier_share(values)) == pytest.approx(0.05, abs=0.01)


def test_the_canary_explains_a_mood_and_what_it_does_not_share_is_left() -> None:
    random = np.random.default_rng(2)
    (mood,) = autocorrelated(1, 80, random, rho=0.7, scale=0.02)
    own = random.normal(0, 0.004, 80)
    left = mood + own - explained(mood + own, mood + random.normal(0, 0.002, 80))
    assert np.std(left) < 0.3 * np.std(mood)
    assert np.max(np.abs(explained(own, mood))) < 0.3 * np.std(own)
    assert not explained(own, np.full(80, math.nan)).any()
    by_chance = [explained(*random.normal(0, 0.01, (2, 80))) for _ in range(50)]
    assert sum(share.any() for share in by_chance) < 15


def test_a_night_without_the_canary_has_the_mood_of_the_nights_around_it() -> None:
    random = np.random.default_rng(4)
    (mood,) = autocorrelated(1, 80, random, rho=0.7, scale=0.02)
    canary = mood + random.normal(0, 0.002, 80)
    mood[-6:] += 0.3  # a machine that got slower
    canary[-6:] += 0.3
    canary[-4:] = math.nan
    canary[40] = math.nan
    assert np.ptp(mood - explained(mood, canary)) < 0.08
    assert not follow(mood[None], canary).slowdowns


def test_a_machine_that_got_slower_is_the_canarys_change_and_not_that_of_figures_that_share_it() -> None:
    nights = nights_of(*[0.1] * 10)
    assert follow(nights).slowdowns
    assert not follow(nights, nights[0] + np.random.default_rng(9).normal(0, 0.001, nights.shape[1])).slowdowns


@pytest.mark.parametrize("size", [0.7, -0.7])
def test_a_machine_far_off_excuses_what_changed_by_less_and_makes_nothing_else_of_it(size: float) -> None:
    """Compute takes twice as long, and a step that half communicates half as long again."""
    random = np.random.default_rng(6)
    mood = random.normal(0, 0.01, 120)
    step, canary, steady = mood.copy(), mood + random.normal(0, 0.002, 120), mood.copy()
    canary[60:70] += size
    step[60:70] += size / 2
    for nights in (step, steady):
        left = nights - explained(nights, canary)
        assert np.abs(left[60:70] - np.median(left)).max() < 0.05
    followed = follow(step[None], canary)
    assert not followed.slowdowns
    assert not followed.gains


def test_a_night_that_looks_worse_is_worth_another_job_and_a_usual_one_is_not() -> None:
    watched = follow(nights_of(0.0))
    assert watched.looks_worse(0, [0.05], [])
    assert not watched.looks_worse(0, [0.005], [])
    steady = follow(nights_of(0.0, scale=0.001))
    assert steady.looks_worse(0, [1.1 * LEAST], [])
    assert not steady.looks_worse(0, [0.9 * LEAST], [])
    nights = nights_of(0.0)
    shared = follow(nights, nights[0])
    assert shared.looks_worse(0, [0.05], [0.0])
    assert not shared.looks_worse(0, [0.05], [0.05])
    assert not Detector([ALONE]).looks_worse(0, [1.0], [])  # nothing is known yet


def test_noise_alone_opens_few_episodes() -> None:
    """Here are 20 figures for half a year of each; simulate_nights.py has 200 for twenty years."""
    names, nights = ("ar0.95", "walk", "out5", "garch", "measured", "mixed"), 200
    drawn = (draw(name, 20, nights, np.random.default_rng([11, len(name)])) for name in names)
    count = sum(len(follow(values, limit=false_alarm_limit(20)).slowdowns) for values, _ in drawn)
    assert at_most(simulated.of_years(count, len(names) * nights / 365), simulated.MOST_A_YEAR["quiet"]) != "fail"


def test_with_a_limit_that_is_too_wide_noise_alone_opens_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "MARGIN", 0.5)
    values, _ = draw("ar0.7", 20, 200, np.random.default_rng(12))
    count = len(follow(values, limit=0.2).slowdowns)
    assert at_most(simulated.of_years(count, 200 / 365), simulated.MOST_A_YEAR["quiet"]) == "fail"


def test_the_simulation_finds_what_is_planted_and_judges_it() -> None:
    planted = simulated.ROWS["10 %, gauss"]
    assert isinstance(planted, simulated.Planted)
    assert all(planted.nights(20, 0))
    assert simulated.of_share(10, 10).low == pytest.approx(0.741, abs=0.001)
    assert simulated.of_share(0, 10).high == pytest.approx(0.259, abs=0.001)
    assert simulated.of_years(0, 20) == (0.0, pytest.approx(0.15, abs=0.001))
    asked = {row.noise for row in simulated.ROWS.values()}
    assert asked == NOISES.keys()


@pytest.mark.parametrize(("first", "last"), [(120, 200), (0, 150), (60, 130)])
def test_a_canary_that_comes_or_goes_changes_no_level(first: int, last: int) -> None:
    random = np.random.default_rng(4)
    mood, at = 0.02 * random.normal(size=200), np.arange(200)
    seconds = np.where((at >= first) & (at < last), mood + 0.003 * random.normal(size=200), np.nan)
    followed = follow(mood + 0.005 * random.normal(size=(10, 200)), seconds, false_alarm_limit(10))
    assert not followed.slowdowns
    assert not followed.gains


def test_a_row_of_other_numbers_is_simulated_anew(tmp_path: Path) -> None:
    def run(trials: int) -> list[int]:
        words = argparse.Namespace(trials=trials, figures=2, out=tmp_path / "rows.json")
        list(simulated.simulate(["10 %, gauss"], words))
        kept = json.loads(words.out.read_text())["10 %, gauss"]
        return [kept["count"], kept["figures"]]

    assert [run(1), run(2)] == [[1, 2], [2, 2]]
    known = tmp_path / "rows.json"
    known.write_text(known.read_text().replace('"count": 2', '"count": 2, "kept": true'))
    run(2)
    assert json.loads(known.read_text())["10 %, gauss"]["kept"]


def test_the_measured_noise_is_of_this_projects_jobs_on_local_and_vcluster() -> None:
    noises = residuals()
    assert {name.split()[0] for name in noises} == {"local", "vcluster"}
    assert all(len(one) >= 20 and 0.001 < np.std(one) < 1 for one in noises.values())


def test_the_noises_have_their_scales() -> None:
    def spread(name: str) -> Sequence[float]:
        values, _ = draw(name, 200, 365, np.random.default_rng(8))
        return float(np.std(values)), float(np.ptp(np.percentile(values, [25, 75])))

    assert spread("gauss")[0] == pytest.approx(math.hypot(0.015, 0.005), rel=0.02)
    assert spread("t2")[1] == pytest.approx(0.02, rel=0.1)
    assert spread("ar0.95")[0] == pytest.approx(math.hypot(0.015, 0.005), rel=0.1)
    assert spread("garch")[0] == pytest.approx(math.hypot(0.015, 0.005), rel=0.15)
    walk, _ = draw("walk", 200, 365, np.random.default_rng(8))
    assert np.abs(walk).max() < 0.05 + 5 * 0.005
    sticky, _ = draw("sticky10", 200, 365, np.random.default_rng(8))
    assert np.mean(sticky) == pytest.approx(0.3 * math.log1p(0.05), rel=0.1)
