"""The tolerance of loss curves lets rounding pass, and nothing that is small but wrong."""

import math
import random
from dataclasses import replace

import pytest
from test_parity import SMALL
from training import Case, train_parallel, train_serial
from virtual_ranks import run_ranks

from engine.grid import Grid
from engine.result.judges.curves import COURSE, TOLERANCES, apart, astray
from engine.result.metrics import WINDOW, curve_difference, window_means

STEPS = 30


@pytest.mark.parametrize(("precision", "wrong"), [("fp64", 1e-9), ("fp32", 1e-2)])
def test_rounding_is_far_below_the_tolerance_and_a_learning_rate_that_is_slightly_off_is_above(
    precision: str, wrong: float
) -> None:
    case = Case(SMALL, steps=STEPS, precision=precision, learning_rate=0.1)
    serial = train_serial(case).losses
    ours = run_ranks(Grid(2, 1, 2, 1), lambda comm: train_parallel(case, comm))[0].losses
    assert curve_difference(ours, serial)[0] < TOLERANCES[precision] / 10
    assert apart(ours, serial, precision) is None
    off = train_serial(replace(case, learning_rate=(1 + wrong) * case.learning_rate)).losses
    assert "is allowed" in str(apart(off, serial, precision))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_differs(loss: float) -> None:
    assert apart([1.0, loss], [1.0, 1.0], "fp32")


@pytest.mark.parametrize(("steps", "windows"), [(1, 1), (99, 1), (100, 1), (199, 1), (200, 2), (1050, 10)])
def test_windows_have_about_as_many_steps_and_leave_none_out(steps: int, windows: int) -> None:
    means = window_means([float(step) for step in range(steps)])
    assert len(means) == windows
    assert means == sorted(means)
    assert means[0] == pytest.approx((max(steps // windows, 1) - 1) / 2)
    assert means[-1] <= steps - 1


def long_curve(seed: int, steps: int = 3000) -> list[float]:
    """Losses that fall from 9 to 3 nats, each step with a noise of its own, as after thousands of steps in bf16."""
    drawing = random.Random(seed)
    return [3 + 6 / (1 + step / 100) + drawing.gauss(0, 0.01) for step in range(steps)]


def test_a_long_curve_may_take_other_steps_but_no_other_course() -> None:
    ours, theirs = long_curve(1), long_curve(2)
    assert curve_difference(ours, theirs)[0] > 3 * COURSE
    assert astray(ours, theirs) is None
    late = len(theirs) - 3 * WINDOW
    worse = [*theirs[:late], *(1.006 * loss for loss in theirs[late:])]
    assert "is allowed" in str(astray(worse, ours))
    slower = [theirs[max(0, step - 40)] for step in range(len(theirs))]  # as if it had learnt later
    assert astray(slower, ours)


def test_a_long_curve_that_diverges_goes_astray() -> None:
    assert astray([*long_curve(1)[:-1], math.nan], long_curve(1))
