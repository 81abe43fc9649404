"""Slowdowns that come and go: lines with the slow nodes where these are known, or with the figures and their nights."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from noises import NOISES, states
from reading import in_order
from sample_nights import FIRST, night_name

from reports.nights.nodes import LATELY, LONG, slow_nodes
from reports.nights.page import pages
from reports.nights.reference import make, make_series
from reports.nights.report import NightReport, night_reports
from reports.page import Paragraph, Table
from reports.read.history import NODES, History, Night, NightJob
from systems.references import Key, References, digest

FAST, SLOW = [f"x120{number}" for number in range(6)], ["x1206", "x1207"]
NIGHTS, FIGURES, NOISE = 240, 4, 0.015
STATES = [name for name, noise in NOISES.items() if noise.group == "states"]


def draw_states(name: str, seed: int, nights: int = NIGHTS) -> tuple[list[bool], float]:
    """Draw the nights in which a noise of NOISES is in its slower state; returns by how much, too."""
    draw = NOISES[name].draw
    with_state = draw(1, nights, np.random.default_rng(seed))
    without = states(1, nights, np.random.default_rng(seed), **{**draw.keywords, "by": 0.0})  # type: ignore[attr-defined]
    return (with_state - without > 0)[0].tolist(), draw.keywords["by"]  # type: ignore[attr-defined]


def draw_history(
    slow: Sequence[bool],
    by: float,
    seed: int = 1,
    *,
    nodes: bool = True,
    moods: Sequence[float] = (),
    noise: float = NOISE,
    pools: tuple[Sequence[str], Sequence[str]] = (FAST, SLOW),
) -> History:
    """Draw nights of FIGURES tests, one job each on one node, which is of the second pool in the slower state."""
    random, nights = np.random.default_rng([seed, 9]), []
    for at, is_slow in enumerate(slow):
        jobs = []
        for test in range(FIGURES):
            seconds = math.exp(math.log1p(by) * is_slow + random.normal(0, noise) + (moods[at] if len(moods) else 0.0))
            host = random.choice(pools[is_slow])
            key = Key("gpu", f"Test{test}", "", "", 4, "", "")
            state = {NODES: str(host)} if nodes else {}
            jobs.append(NightJob(key, False, "", {"time_per_iteration": (seconds, "s")}, state, {}, 1.0))
        nights.append(Night(night_name(at), FIRST + timedelta(days=at), jobs, {}))
    return History("s", tuple(nights))


def reported(history: History) -> NightReport:
    """Return the report of the last night, with references of the first 30."""
    series = tuple(make_series(replace(history, nights=history.nights[:30]), {}).values())
    (last,) = night_reports(history, References(system="s", made="today", digest=digest(series), series=series))
    return last


def runs(*spans: tuple[int, int], nights: int = 160) -> list[bool]:
    return [any(first <= at < end for first, end in spans) for at in range(nights)]


def nodes_in(line: str) -> Collection[str]:
    return {*re.findall(r"x120\d", line)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STATES)
def test_slow_nodes_of_a_state_that_returns_are_a_line_with_their_effect_and_nights(name: str) -> None:
    slow, by = draw_states(name, seed=1)
    line, *others = reported(draw_history(slow, by)).recurring
    assert line.startswith(f"{sum(slow[-LONG[-1] :])} of {LONG[-1]} nights")
    assert nodes_in(line) == {*SLOW}
    for low, high in re.findall(r"([\d.]+) to ([\d.]+)", line):
        assert 100 * by == pytest.approx((float(low) + float(high)) / 2, rel=0.2)
    assert len(others) <= 1


@pytest.mark.parametrize("name", ["ar0.95", "walk", "garch", "sticky3"])
def test_where_no_node_is_slower_there_is_no_line_of_nodes(name: str) -> None:
    """Planted: what moves all nodes alike, and lasts, while the scheduler's choice of nodes lasts, too."""
    for seed in range(3):
        drawn, _ = draw_states("sticky10", seed)
        (moods,) = NOISES[name].draw(1, NIGHTS, np.random.default_rng([seed, 5]))
        history = draw_history(drawn, 0.0, seed, moods=moods.tolist(), noise=0.005)
        assert slow_nodes(history.nights, LONG) == []
        assert slow_nodes(history.nights, LATELY) == []


def test_nodes_that_joined_as_the_whole_machine_got_slower_are_not_blamed() -> None:
    """Planted: half of the pool is replaced in the night from which on all nodes are slower."""
    replaced = runs((200, NIGHTS), nights=NIGHTS)
    history = draw_history(replaced, 0.08, noise=0.01, pools=(FAST, [*FAST[3:], *SLOW, "x1208"]))
    assert {each.node for each in slow_nodes(history.nights, LONG)} == {SLOW[0]}
    assert slow_nodes(history.nights, LONG, changes=[200]) == []
    assert not any(nodes_in(line) for line in reported(history).recurring)


def test_a_node_that_was_mended_is_no_line_any_more() -> None:
    slow, by = draw_states("sticky3", 1)
    mended = draw_history(slow[:120], by).nights + draw_history(slow[120:], 0.0, 2).nights
    assert {each.node for each in slow_nodes(mended[:120], LONG)} == {*SLOW}
    assert slow_nodes(mended, LONG) == []


@pytest.mark.parametrize(
    ("spans", "state", "line"),
    [
        ([(70, 80)], "closed", ""),
        ([(70, 80), (100, 110)], "learnt", "20 of 160 nights, in 2 runs"),
        ([(70, 80), (100, 106), (130, 134)], "learnt", "20 of 160 nights, in 3 runs"),
    ],
)
def test_without_nodes_what_was_as_slow_more_than_once_is_learnt_and_a_line(
    spans: Sequence[tuple[int, int]], state: str, line: str
) -> None:
    last = reported(draw_history(runs(*spans), 0.1, nodes=False, noise=0.005))
    assert [one.since for one in last.episodes] == [first for first, _ in spans[:2]], "the third is known"
    for episode in last.episodes:
        assert (episode.state, episode.recurrence.runs) == (state, len(spans))
        assert episode.recurrence.nights == {at for first, end in spans for at in range(first, end)}
    assert [told.startswith(line) for told in last.recurring] == ([True] if line else [])
    if line:
        assert in_order(last.recurring[0], "4 figures", "Test", "10.")


def test_a_slowdown_that_noise_hides_is_not_said_to_recur() -> None:
    """Planted: nights that differ by nearly as much as the slowdown, so that some look like it."""
    last = reported(draw_history(runs((70, 95)), 0.05, nodes=False, noise=0.025))
    assert last.recurring == ()
    assert {one.state for one in last.episodes} <= {"closed"}


def test_what_slow_nodes_tell_is_not_told_twice() -> None:
    slow = runs((70, 90), (110, 115), (120, 130))
    with_nodes, without = (reported(draw_history(slow, 0.1, nodes=nodes)) for nodes in (True, False))
    (line,) = with_nodes.recurring
    assert nodes_in(line) == {*SLOW}
    (line,) = without.recurring
    assert line.startswith("35 of 160 nights, in 3 runs")


@pytest.mark.usefixtures("own_references")
def test_the_page_has_the_slow_nodes_and_what_else_recurs() -> None:
    slow = runs((70, 80), (100, 110), (120, 125))
    for nodes, line in ((True, "25 of 160 nights had jobs"), (False, "25 of 160 nights, in 3 runs")):
        history = draw_history(slow, 0.1, nodes=nodes, noise=0.005)
        make(replace(history, nights=history.nights[:30]))
        (system,) = pages([history])
        (section,) = [each for each in system.page.sections if each.name == "recurring"]
        (told, _) = section.blocks
        assert isinstance(told, Paragraph)
        assert told.text.startswith(line)
        assert nodes_in(told.text) == ({*SLOW} if nodes else set())
        (section,) = [each for each in system.page.sections if each.name == "episodes"]
        (listed,) = section.blocks
        assert isinstance(listed, Table)
        assert listed.data["state"].tolist() == ["learnt", "learnt"]
