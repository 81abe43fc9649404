"""The fit finds the numbers that made the times, and leaves alone what the times say nothing of."""

import random
from dataclasses import replace
from statistics import stdev

import pytest

from engine.simulator.machine import Fitted
from engine.validation.calibrate import NOISE, PRIORS, PRIORS_CHARGED, PRIORS_ON_CORES, Observation, closest, fit

TRUE = Fitted(products=0.6, link=0.5, fading=0.1, slowdown=0.2)


def step_s(compute_s: float, sent_s: float, hops: float):  # type: ignore[no-untyped-def]
    """A job that computes, sends, and hides half of it."""
    return lambda f: compute_s / f.products * (1 + 0.5 * f.slowdown) + 0.5 * sent_s / f.link * (1 + f.fading * hops)


def row(job, measured_s: float) -> Observation:  # type: ignore[no-untyped-def]
    return Observation(lambda fitted: (job(fitted), 0.0), measured_s)


def test_where_collectives_share_the_cores_the_slowdown_is_what_times_and_waits_say() -> None:
    def alone(f: Fitted) -> tuple[float, float]:
        return 1 / f.products, 0.0

    def beside(f: Fitted) -> tuple[float, float]:
        return 1 / f.products * (1 + f.slowdown) + 1 / f.link, 1 / f.link

    true = Fitted(products=0.8, link=0.5, slowdown=1.0)
    rows = [Observation(job, *job(true)) for job in (alone, beside)]
    found, usual = fit(rows, PRIORS_ON_CORES).fitted, fit(rows, PRIORS).fitted
    assert found.slowdown == pytest.approx(1, abs=0.01)
    assert beside(found) == pytest.approx(beside(true), rel=0.01)
    assert usual.slowdown < 0.7, "elsewhere a row or two don't make it so much"
    only_times = fit([Observation(row.predicted, row.measured_s) for row in rows], PRIORS).fitted
    assert abs(only_times.link - 0.5) > abs(usual.link - 0.5)
    assert fit(rows, PRIORS_CHARGED).fitted.slowdown == 0, "what collectives take was measured"


def test_many_rows_give_back_the_numbers_that_made_them() -> None:
    jobs = [step_s(c, s, h) for c in (0.1, 1.0, 5.0) for s in (0.0, 1.0, 4.0) for h in (0.0, 2.0, 8.0)]
    found = fit([row(job, job(TRUE)) for job in jobs]).fitted
    for job in jobs:
        assert job(found) == pytest.approx(job(TRUE), rel=2e-3)


def test_rows_without_communication_leave_the_link_and_its_uncertainty_as_they_were() -> None:
    job = step_s(1.0, 0.0, 0.0)
    found = fit([row(job, job(TRUE))])
    for name in ("link", "fading"):
        assert getattr(found.fitted, name) == pytest.approx(PRIORS[name].value)
        assert found.deviations[name] == pytest.approx(PRIORS[name].spread)
    assert found.correlation("products", "link") == pytest.approx(0, abs=1e-9)
    assert found.deviations["products"] < PRIORS["products"].spread / 2
    assert job(found.fitted) == pytest.approx(job(TRUE), rel=0.01)


def test_deviations_say_how_far_the_numbers_are_from_the_true_ones() -> None:
    """True numbers are drawn from the priors, and the times have the noise that the fit assumes."""
    jobs = [step_s(c, s, h) for c in (0.1, 1.0, 5.0) for s in (1.0, 4.0) for h in (0.0, 8.0)]
    draw, off = random.Random(5), []
    narrow = {name: replace(prior, spread=prior.spread / 2, low=-1, high=9) for name, prior in PRIORS.items()}
    for _ in range(60):
        true = Fitted(**{name: draw.gauss(prior.value, prior.spread) for name, prior in narrow.items()})
        found = fit([row(job, job(true) * draw.gauss(1, NOISE)) for job in jobs], narrow)
        off += [(getattr(found.fitted, name) - getattr(true, name)) / found.deviations[name] for name in narrow]
    assert stdev(off) == pytest.approx(1, abs=0.2)


def test_a_number_at_its_bound_stays_there_and_has_a_deviation() -> None:
    job = step_s(1.0, 4.0, 0.0)
    found = fit([row(job, 0.1)])
    assert found.fitted.link == pytest.approx(PRIORS["link"].high)
    assert found.deviations["link"] > 0
    assert "apart the least" in closest(found)


def test_a_fit_needs_rows() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        fit([])
