"""Faults planted in real nights: their nights as planned, and that only what is told as planted is told rightly."""

import math
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path

import planted_nights
import pytest
from planted_nights import FAULTS, NODES_NEEDED, QUIET, RUNS, SLOW_KBIT, SLOW_NODE, USUAL_KBIT, Conditions, with_fault

from engine.errors import RunError
from night.session import NightRun
from reports.nights.episodes import FEWEST_OF_CREEP
from reports.nights.reference import make_series
from reports.nights.report import NightReport, night_reports
from reports.read.history import NODES, History, Night, NightJob
from systems.references import FEWEST_JOBS, Key, References, digest

KEY = Key("cpu", "Bandwidth", "planted=step", "", 2, "fp32", "")
SPREAD = 0.005
"""Standard deviation of real nights, as a fraction."""


def reports_of(nights: Sequence[Conditions], seed: int = 69) -> list[NightReport]:
    """Judge nights that measure what their conditions let expect."""
    noise, found = random.Random(seed), []
    for number, one in enumerate(nights):
        slow = SLOW_NODE in one.nodes or one.updated
        value = 120 * min(one.kbit, SLOW_KBIT if slow else USUAL_KBIT) * math.exp(noise.gauss(0, SPREAD))
        state = {"commit": "new" if one.updated else "old", NODES: ", ".join(one.nodes)}
        job = NightJob(KEY, False, "", {"all_reduce": (value, "B/s")}, state, {}, 10.0)
        began = datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=10 * number)
        found.append(Night(f"night {number}", began, [job], {KEY.name: None}))
    series = tuple(make_series(History("vcluster", tuple(found[:FEWEST_JOBS])), {}).values())
    known = References(system="vcluster", made="", digest=digest(series), series=series)
    return night_reports(History("vcluster", tuple(found)), known, last=len(found))


@cache
def reports_of_fault(name: str) -> list[NightReport]:
    return reports_of(FAULTS[name].nights)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_planted_behind_quiet_nights_and_mended(name: str) -> None:
    nights = FAULTS[name].nights
    bad = [one.kbit < USUAL_KBIT or one.updated or SLOW_NODE in one.nodes for one in nights]
    assert not any(bad[:QUIET])
    assert not any(bad[-6:])
    assert QUIET > FEWEST_JOBS
    assert {node for one in nights for node in one.nodes} <= {f"n{number}" for number in range(NODES_NEEDED)}
    if name == "creep":
        assert sum(bad) >= 2 * FEWEST_OF_CREEP
    if name == "node":
        runs = sum(later and not earlier for earlier, later in pairwise(bad))
        assert (runs, sum(bad)) == (len(RUNS), sum(slow for slow, _ in RUNS))
        assert 0.25 < sum(bad) / len(bad[QUIET:]) < 0.35


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_rightly_of_its_own_nights(name: str) -> None:
    assert FAULTS[name].wrong(reports_of_fault(name)) == []


@pytest.mark.parametrize(("judged", "planted"), [(a, b) for a in FAULTS for b in FAULTS if a != b])
def test_a_fault_is_told_wrongly_of_nights_of_another(judged: str, planted: str) -> None:
    assert FAULTS[judged].wrong(reports_of_fault(planted))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_wrongly_of_nights_without_any(name: str) -> None:
    assert FAULTS[name].wrong(reports_of(with_fault([], 30)))


def test_an_episode_that_stays_open_is_told_wrongly() -> None:
    assert FAULTS["step"].wrong(reports_of(FAULTS["step"].nights[: QUIET + 6])) == ["open, and not closed"]


def test_a_creep_has_a_slope_of_nights_a_day_although_they_are_seconds_apart() -> None:
    (one,) = reports_of_fault("creep")[-1].episodes
    slope, low, high = one.a_month
    assert 0.15 < low < slope < high < 0.25  # 0.6 % a night, of which a month has 30


@pytest.mark.parametrize(("lost", "tried"), [(0, 1), (1, 2), (9, planted_nights.MOST_LOST)])
def test_a_night_whose_job_is_lost_is_run_again_and_not_for_ever(
    lost: int, tried: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []
    (first, *_) = reports_of_fault("step")[-1].judged.nights
    monkeypatch.setattr(NightRun, "run", lambda night, tests: ran.append(night.name))
    monkeypatch.setattr(planted_nights, "nights_of", lambda name, night: History("vcluster", (first,)))
    monkeypatch.setattr(planted_nights, "measured", lambda past: int(len(ran) > lost))
    night = NightRun("before", "vcluster", tmp_path, time.monotonic())
    if lost < planted_nights.MOST_LOST:
        assert planted_nights.run(night, [], "step", 1).endswith("n0, n1")
    else:
        with pytest.raises(RunError, match=r"reframe\.out"):
            planted_nights.run(night, [], "step", 1)
    assert len(ran) == tried
    assert "before" not in ran
