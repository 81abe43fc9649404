"""Whether an interval over jobs holds the true ratio as often as it says, and what decides by it is seldom wrong.

Simulated: each job has noise of its own, its rounds have theirs, and some jobs are disturbed. Of 20,000 draws the
share that an interval misses has a standard error of 0.0015.
"""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from engine.result import metrics
from engine.result.gate import at_least, at_most, over_jobs
from gpu_check.judges import LOOKS, MOST_PROCESSES

DRAWS, MOST_JOBS = 20_000, 10
NOISES = ("normal", "laplace", "heavy tails")
DISTURBED = 0.05
"""Of all jobs, which are off by OFF of the time of one side: of ours alone, or of either."""
OFF = 0.1
LEAST_COVERED, MOST_WRONG = 0.93, 0.06


def noise(name: str, drawing: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """With standard deviation 1."""
    if name == "normal":
        return drawing.standard_normal(shape)
    return drawing.laplace(size=shape) / 2**0.5 if name == "laplace" else drawing.standard_t(3, shape) / 3**0.5


def ends(logs: np.ndarray, looks: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Ends of interval.over_jobs for each row of logarithms, as logarithms."""
    jobs = logs.shape[1]
    one = np.log(over_jobs([math.e**-0.5, math.e**0.5] + [1.0] * (jobs - 2), looks))
    student = one[1] / (np.std([-0.5, 0.5] + [0.0] * (jobs - 2), ddof=1))
    reach = student * logs.std(axis=1, ddof=1)
    return logs.mean(axis=1) - reach, logs.mean(axis=1) + reach


def cases(name: str, disturbed: str) -> Iterator[tuple[str, np.ndarray]]:
    """Logarithms of jobs' paired ratios of which the true one is 1, a row a draw, for every spread of jobs and rounds.

    The median over rounds of a job's noise plus that of rounds is the job's noise plus the median; that of an even
    number of logarithms is that of ratios but for the square of their difference.
    """
    drawing = np.random.default_rng(0)
    own = noise(name, drawing, (DRAWS, MOST_JOBS))
    off = OFF * (drawing.random(own.shape) < DISTURBED)
    off = off * drawing.choice([-1, 1], own.shape) if disturbed == "either side" else off * (disturbed != "none")
    for rounds in range(3, 7):
        middle = np.median(noise(name, drawing, (DRAWS, MOST_JOBS, rounds)), axis=2)
        for job_sd in (0.003, 0.01, 0.02, 0.05):
            for round_sd in (0.01, 0.05):
                logs = job_sd * own + round_sd * middle + off
                for jobs in range(2, MOST_JOBS + 1):
                    yield f"{jobs} jobs ({job_sd}) of {rounds} rounds ({round_sd})", logs[:, :jobs]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("disturbed", ["none", "ours", "either side"])
@pytest.mark.parametrize("name", NOISES)
def test_an_interval_over_jobs_holds_the_truth_and_seldom_decides_wrongly(name: str, disturbed: str) -> None:
    """A true ratio of exactly the limit is neither inside nor outside: whoever says so is wrong."""
    missed = {}
    for case, logs in cases(name, disturbed):
        low, high = ends(logs)
        missed[case] = float(((high <= 0) | (low > 0)).mean())
    worst = max(missed, key=missed.__getitem__)
    assert missed[worst] <= min(1 - LEAST_COVERED, MOST_WRONG), f"{worst}: {missed[worst]:.3f}"


def test_who_looks_at_ever_more_jobs_until_they_decide_is_seldom_wrong() -> None:
    """As ci/gpu does, of two to six processes; were each look as sure as a single one, it would be wrong too often."""
    logs = np.random.default_rng(2).normal(0, 0.01, (DRAWS, MOST_PROCESSES))

    def wrong(looks: int) -> float:
        decided = np.zeros(DRAWS, bool)
        for jobs in range(2, MOST_PROCESSES + 1):
            low, high = ends(logs[:, :jobs], looks)
            decided |= (high <= 0) | (low > 0)
        return float(decided.mean())

    assert wrong(LOOKS) <= 0.05
    assert wrong(1) > 0.08


def test_the_simulation_decides_as_the_real_figure_does() -> None:
    drawing = np.random.default_rng(1)
    for jobs in range(2, MOST_JOBS + 1):
        for rounds in (3, 6):
            logs = drawing.normal(0, 0.02, (20, jobs, rounds))
            low, high = ends(np.log(np.median(np.exp(logs), axis=2)))
            for row, first, last in zip(logs, low, high, strict=True):
                found = metrics.paired([[(math.exp(one) * 3.0, 3.0) for one in job] for job in row]).interval
                assert np.log(found) == pytest.approx((first, last), abs=1e-9)
                decided = {at_most(found, 1.0), at_least(found, 1.0)} != {"undecided"}
                assert decided == (last <= 0 or first > 0)


def test_an_interval_that_is_too_narrow_is_noticed() -> None:
    """Half as wide, or the range of two jobs, as a bootstrap of them has it."""
    _, logs = next(cases("normal", "none"))
    low, high = ends(logs)
    reach = (high - low) / 4
    middle = (high + low) / 2
    assert (abs(middle) > reach).mean() > MOST_WRONG
    assert ((logs.max(axis=1) < 0) | (logs.min(axis=1) > 0)).mean() > 0.4
