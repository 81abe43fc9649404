"""Rows to fit to and widths of intervals follow from rules, and the rules do what they promise."""

import random
from math import log

import pytest

from engine.validation.held_out import HELD, PublishedSeries, fitted_devices, published_series, spread, spreads


def series(system: str, *devices: int) -> PublishedSeries:
    times = {f"model-{count}": {count: 1.0} for count in devices}
    return PublishedSeries(source="made up", system=system, sequences=1, overlap="none", batch_s=times)


def test_a_machine_is_fitted_to_the_ends_of_its_first_table_up_to_8192_devices() -> None:
    first, second, other = series("a", 64, 512, 8192, 32768), series("a", 16, 4096), series("b", 8, 16)
    every = [first, second, other]
    assert [fitted_devices(one, every) for one in every] == [(64, 8192), (), (8, 16)]


def test_the_committed_tables_are_fitted_at_these_rows() -> None:
    every = published_series()
    assert {(one.system, fitted_devices(one, every)) for one in every} == {
        ("frontier", (512, 8192)),
        ("perlmutter", (512, 4096)),
        ("perlmutter", ()),
        ("alps", (1024, 6144)),
    }


@pytest.mark.parametrize("number", [3, 9, 40])
def test_intervals_by_others_errors_hold_in_nine_of_ten_cases(number: int) -> None:
    draw = random.Random(number)
    tries = 4000
    held = 0
    for _ in range(tries):
        width = log(1 + spread([draw.gauss(0, 0.1) for _ in range(number)]))
        held += abs(draw.gauss(0, 0.1)) <= width
    assert held / tries == pytest.approx(HELD, abs=4 * (HELD * (1 - HELD) / tries) ** 0.5)


def test_an_own_error_has_no_part_in_an_interval() -> None:
    errors = {"a": [0.1, -0.1], "b": [0.3], "c": []}
    found = spreads(errors, otherwise=0.5)
    assert found == pytest.approx({"a": spread([0.3]), "b": spread([0.1, -0.1]), "c": spread([0.1, -0.1, 0.3])})
    assert spreads({"a": [0.1]}, otherwise=0.5) == pytest.approx({"a": 0.5})
    with pytest.raises(ValueError, match="at least one error"):
        spread([])
