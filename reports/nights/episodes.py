"""Episodes: slowdowns of a system's figures that begin together, as one thing from its alarm to its end.

Nothing of them is stored: they are derived from the results database, as they were known after any of its nights. A
state of the machine that its figures have come back from before is told apart from them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import expm1
from typing import Literal

from reports.nights import nodes
from reports.nights.culprit import culprit, what_changed
from reports.nights.detector import Slowdown, State
from reports.nights.judge import FigureHistory, Judgement
from reports.nights.shape import Shape
from reports.read.history import Night
from systems.references import CANARY

TOGETHER = 3
"""Nights between the beginnings of slowdowns of one episode, at most."""
VAGUE = 3
"""The beginning of a slowdown that took w nights to be found may be off by w / VAGUE of them, if that is more."""
BEFORE = 20
"""Nights before a change that show how it was."""
STEP = Shape("step", 0)
FEWEST_OF_CREEP = 14
"""Nights since its beginning from which a creep is told from a step."""
MONTH = 30
ALIKE = 0.5
"""Share of nights that states of two figures have in common, of those that either has, to be one state."""

EpisodeState = Literal["open", "closed", "explained", "learnt"]
STATES: Sequence[EpisodeState] = ("open", "closed", "explained", "learnt")


@dataclass(frozen=True, slots=True)
class Member:
    """Slowdown of one figure in an episode."""

    figure: FigureHistory
    slowdown: Slowdown
    place: int
    """Place among all slowdowns."""
    ended: int | None
    """Night in which its end was known, of the nights that count."""

    @property
    def size(self) -> float:
        """Factor by which the figure is worse, less one."""
        return expm1(self.slowdown.size)


@dataclass(frozen=True, slots=True)
class Episode:
    """Slowdowns that began together, as known after a night."""

    number: int
    """Order in which it was found, from 1."""
    since: int
    found: int
    """Night that raised the alarm."""
    ended: int | None
    members: tuple[Member, ...]
    """The worst first."""
    shape: Shape
    """Shape of the worst member's slowdown."""
    parts: tuple[tuple[str, str], ...]
    """Each test that got slower, with the part of it that did; "" where nothing shows it."""
    of_nodes: str
    """Whether nodes explain it, in words."""
    changed: tuple[str, ...]
    """What changed with its beginning, in words."""
    state: EpisodeState

    @property
    def size(self) -> float:
        """Factor by which its worst figure is worse, less one."""
        return self.members[0].size

    @property
    def part(self) -> str:
        """Return the parts that got slower, in words."""
        return "; ".join(dict.fromkeys(part for _, part in self.parts if part))

    @property
    def figures(self) -> tuple[FigureHistory, ...]:
        return tuple(member.figure for member in self.members)

    @property
    def a_month(self) -> tuple[float, float, float]:
        """Growth of a creep in a month, as a fraction, and both ends of its interval."""
        shape = self.shape
        return expm1(MONTH * shape.slope), expm1(MONTH * shape.low), expm1(MONTH * shape.high)


@dataclass(frozen=True, slots=True)
class MachineState:
    """State of the machine that comes and goes: nights in which figures are slower."""

    figures: tuple[FigureHistory, ...]
    """The slowest first."""
    size: float
    """Factor by which the slowest figure is worse, less one."""
    nights: int
    of: int
    """Nights that are remembered."""
    runs: int
    """Times that it came."""
    of_nodes: str
    """Whether nodes explain it, in words."""


def find_episodes(judged: Judgement, at: int) -> list[Episode]:
    """Group the slowdowns that were found up to a night, by its position."""
    groups = list[list[Member]]()
    for place, slowdown in enumerate(judged.detector.slowdowns):
        if slowdown.found <= at:
            ended = slowdown.ended if slowdown.ended is not None and slowdown.ended <= at else None
            new = Member(judged.watched[slowdown.figure], slowdown, place, ended)
            of = next((group for group in reversed(groups) if _belongs(slowdown, group)), None)
            if of is None:
                groups.append([new])
            else:
                of.append(new)
    return [_episode(judged, number, group, at) for number, group in enumerate(groups, 1)]


def _belongs(slowdown: Slowdown, group: Sequence[Member]) -> bool:
    """Return whether a slowdown began with those of a group, before all of them had ended."""
    first = group[0].slowdown
    apart = max(TOGETHER, slowdown.nights // VAGUE, first.nights // VAGUE)
    young = any(member.ended is None or member.ended >= slowdown.found for member in group)
    return young and abs(slowdown.since - first.since) <= apart


def _episode(judged: Judgement, number: int, group: Sequence[Member], at: int) -> Episode:
    members = tuple(sorted(group, key=lambda member: -member.slowdown.size))
    ends = [member.ended for member in members if member.ended is not None]
    ended = max(ends) if len(ends) == len(members) else None
    found, since = group[0].slowdown.found, group[0].slowdown.since
    shape, begun = judged.shapes.get(members[0].place, (STEP, since))
    if shape.kind == "creep" and shape.nights >= FEWEST_OF_CREEP:
        since = begun
    else:
        shape = STEP
    until = at if ended is None else max(found, ended - TOGETHER)
    tests = dict.fromkeys((member.figure.figure == CANARY, member.figure.key) for member in members)
    early, late = judged.nights[: max(0, since - 1)][-BEFORE:], judged.nights[since + 1 : until + 1]
    before, now = (
        {key: [job for night in part for job in night.measured(key)] for _, key in tests} for part in (early, late)
    )
    parts = ((key.test, culprit(CANARY if canary else key.test, now[key], before[key])) for canary, key in tests)
    states = ([job.state for jobs in side.values() for job in jobs] for side in (before, now))
    figures = tuple(member.figure for member in members)
    worse, usual = range(since, until + 1), range(max(0, since - nodes.BEFORE), since)
    of_nodes, by_nodes = explain_by_nodes(judged.nights[: until + 1], figures, worse, usual)
    return Episode(
        number,
        since,
        found,
        ended,
        members,
        shape,
        parts=tuple(parts),
        of_nodes=of_nodes,
        changed=tuple(what_changed(*states)),
        state=_state(judged, members, by_nodes=by_nodes),
    )


def _state(judged: Judgement, members: Sequence[Member], *, by_nodes: bool) -> EpisodeState:
    """Return explained where nodes explain it, or where it is over without having come back by itself."""
    is_open = any(member.ended is None for member in members)
    if by_nodes or not (is_open or all(member.slowdown.returned for member in members)):
        return "explained"
    known = sum(judged.detector.state(member.slowdown.figure) is not None for member in members)
    return "open" if is_open else "learnt" if 2 * known >= len(members) else "closed"


def explain_by_nodes(
    nights: Sequence[Night], figures: Iterable[FigureHistory], worse: Collection[int], before: Iterable[int]
) -> tuple[str, bool]:
    """Return in words whether nodes explain that figures are worse in these nights, and whether they do. before: nights
    that tell what is usual.
    """
    usual = nodes.how_bad(((one.key, one.figure) for one in figures), (job for at in before for job in nights[at].jobs))
    found = nodes.explain(nights, worse, usual)
    return nodes.describe(found), found.outcome == "explained"


def find_states(judged: Judgement) -> list[MachineState]:
    """Group the states that figures have come back from more than once, by the nights that were in them."""
    known = [(state, figure) for at, figure in enumerate(judged.watched) if (state := judged.detector.state(at))]
    groups = list[list[tuple[State, FigureHistory]]]()
    for state, figure in sorted(known, key=lambda one: -one[0].size):
        group = next((group for group in groups if _alike(group[0][0].nights, state.nights)), None)
        if group is None:
            groups.append([(state, figure)])
        else:
            group.append((state, figure))
    return [_machine_state(judged, group) for group in groups]


def _alike(nights: Iterable[int], others: Iterable[int]) -> bool:
    """Return whether two states are one, by the nights that they have in common."""
    one, other = set(nights), set(others)
    return len(one & other) >= ALIKE * len(one | other)


def _machine_state(judged: Judgement, group: Sequence[tuple[State, FigureHistory]]) -> MachineState:
    state, slowest = group[0]
    figures, inside = tuple(figure for _, figure in group), set(state.nights)
    of_nodes, _ = explain_by_nodes(judged.nights, figures, inside, slowest.jobs.keys() - inside)
    return MachineState(figures, expm1(state.size), len(inside), state.of, state.runs, of_nodes)
