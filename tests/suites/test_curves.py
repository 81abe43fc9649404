"""The tolerance of loss curves lets rounding pass, and nothing that is small but wrong."""

import math
from dataclasses import replace

import pytest
from test_parity import SMALL
from training import Case, train_parallel, train_serial
from virtual_ranks import run_ranks

from engine.grid import Grid
from engine.result.metrics import curve_difference
from suites.base.figures import TOLERANCES, apart

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
