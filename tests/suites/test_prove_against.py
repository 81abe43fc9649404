"""The proof of nights against a commit: what it makes of its nights, and that it goes on where it was stopped."""

from pathlib import Path

import pytest
from prove_against import Settings, Try, as_text, exit_code, keep, kept, order, verdicts_of

from night.against import Point
from night.against import as_text as table
from reports.nights.report import FINE, UNKNOWN, WORSE

SETTINGS = Settings("0123456789abcdef", 3.0, 0, ("--exclude", "unet"))


def tried(planted: bool, code: int, *verdicts: str) -> Try:
    words = {f"test {number}": word for number, word in enumerate(verdicts)}
    return Try(0, planted, code, 4.0, (0.1, 1.0), words, {name: [1.03, 1.031] for name in words})


FOUND, SILENT = tried(True, WORSE, "slower", "undecided"), tried(False, FINE, "no slower", "no slower")


@pytest.mark.parametrize(
    ("one", "outcome", "idle", "loaded"),
    [
        (FOUND, "found", FINE, FINE),
        (SILENT, "right", FINE, FINE),
        (tried(True, UNKNOWN, "undecided", "undecided"), "undecided", WORSE, FINE),
        (tried(False, UNKNOWN, "undecided", "no slower"), "right", FINE, FINE),
        (tried(False, UNKNOWN, "undecided", "undecided"), "undecided", FINE, FINE),
        (tried(True, WORSE, "slower", "no slower"), "WRONG", WORSE, WORSE),
        (tried(True, FINE, "no slower"), "WRONG", WORSE, WORSE),
        (tried(False, WORSE, "slower", "no slower"), "WRONG", WORSE, WORSE),
        (tried(False, WORSE, "failed", "no slower"), "failed", WORSE, WORSE),
        (tried(False, UNKNOWN), "broken", UNKNOWN, UNKNOWN),
        (tried(True, FINE, "slower"), "broken", UNKNOWN, UNKNOWN),
    ],
)
def test_a_try_is_judged_by_its_verdicts(one: Try, outcome: str, idle: int, loaded: int) -> None:
    assert one.outcome == outcome
    assert exit_code([FOUND, SILENT, one], under_load=False) == idle
    assert exit_code([FOUND, SILENT, one], under_load=True) == loaded


def test_verdicts_are_read_from_the_nights_own_table() -> None:
    points = [Point("a", (1.03, 1.03, 1.031)), Point("b", failed=True, reason="it  hung"), Point("c")]
    assert verdicts_of(table("0123456789ab", points)) == {"a": "slower", "b": "failed", "c": "undecided"}
    assert verdicts_of("nothing") == {}


def test_kinds_are_mixed_and_more_tries_begin_with_those_of_fewer() -> None:
    few, many = order(3), order(20)
    assert many[: len(few)] == few
    assert sum(planted for _, planted in many) == 20
    assert len({number for number, _ in many}) == 40
    assert {many[place][1] for place in range(0, 40, 2)} == {True, False}


def test_a_proof_goes_on_with_what_it_kept_but_for_broken_tries(tmp_path: Path) -> None:
    assert kept(tmp_path, SETTINGS) == {}
    keep(tmp_path, SETTINGS, {0: FOUND, 1: tried(False, UNKNOWN)})
    again = kept(tmp_path, SETTINGS)
    assert {number: (one.outcome, one.minutes) for number, one in again.items()} == {0: ("found", 4.0)}
    assert kept(tmp_path, Settings("0123456789abcdef", 3.0, 4, ())) == {}
    with pytest.raises(SystemExit, match="other settings"):
        kept(tmp_path, Settings("0123456789abcdef", 3.0, 0, ("--exclude=unet",)))


def test_the_table_has_a_line_for_each_try_and_for_each_kind_and_test() -> None:
    lines = as_text(SETTINGS, [FOUND, SILENT]).splitlines()
    assert [line.split()[:2] for line in lines[3:5]] == [["planted", "found"], ["quiet", "right"]]
    tests = [line for line in lines if "1.0305" in line]
    assert len(tests) == 4
    assert "1 found of 1" in lines[-2]
