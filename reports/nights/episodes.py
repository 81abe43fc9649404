"""Episodes: slowdowns of a system's figures that begin together, as one thing from its alarm to its end.

Nothing of them is stored: they are derived from the results database. Which were found, and which of them are open or
over, is told as it was known after any of its nights; their sizes, shapes, and whether they are learnt, as known after
the last one. A state of the machine that its figures have come back from before is told apart from them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import expm1
from typing import Literal

from reports.nights import nodes
from reports.nights.culprit import culprit, what_changed
from reports.nights.detector import Slowdown, State
from reports.nights.judge import FigureHistory, Judgement
from reports.nights.nodes import Explanation
from reports.nights.shape import Shape
from reports.read.history import Night
from systems.references import CANARY

TOGETHER = 3
"""Nights by which slowdowns of one episode begin apart at most, or as many as the faster of them took to be found."""
BEFORE = 20
"""Nights before a change that show how it was."""
STEP = Shape("step", 0)
FEWEST_OF_CREEP = 14
"""Nights since its beginning from which a creep is told from a step."""
MONTH = 30
"""Days."""
DAY_S = 86_400.0
ALIKE = 0.5
"""Share of nights that states of two figures have in common, of those that either has, to be one state."""

EpisodeState = Literal["open", "closed", "explained", "learnt"]
STATES: Sequence[EpisodeState] = ("open", "closed", "explained", "learnt")


@dataclass(frozen=True, slots=True)
class Episode:
    """Slowdowns that began together, open or over as known after a night."""

    number: int
    """Order in which it was found, from 1."""
    since: int
    found: int
    """Night that raised the alarm."""
    ended: int | None
    figures: tuple[FigureHistory, ...]
    """The worst first."""
    slowdowns: tuple[Slowdown, ...]
    """Slowdown of each figure."""
    shape: Shape
    """Shape of the worst figure's slowdown."""
    parts: tuple[tuple[str, str], ...]
    """Each test that got slower, with the part of it that did; "" where nothing shows it."""
    nodes: Explanation
    """Whether nodes explain it."""
    changed: tuple[str, ...]
    """Changes of the machine with its beginning, in words."""
    state: EpisodeState
    nights_a_month: float = MONTH
    """Nights of the worst figure in MONTH, as not every night of a system may have it."""

    @property
    def sizes(self) -> list[float]:
        """Return the factor by which each figure is worse, less one."""
        return [expm1(slowdown.size) for slowdown in self.slowdowns]

    @property
    def part(self) -> str:
        """Return the parts that got slower, in words."""
        return "; ".join(dict.fromkeys(part for _, part in self.parts if part))

    @property
    def a_month(self) -> tuple[float, float, float]:
        """Growth of a creep in a month, as a fraction, and both ends of its interval."""
        slope, low, high = (
            self.nights_a_month * a_night for a_night in (self.shape.slope, self.shape.low, self.shape.high)
        )
        return expm1(slope), expm1(low), expm1(high)


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
    nodes: Explanation
    """Whether nodes explain it."""


def group(slowdowns: Iterable[Slowdown]) -> list[list[Slowdown]]:
    """Group slowdowns, in the order in which they were found: those that begin together, while one of them is open."""
    groups = list[list[Slowdown]]()
    for new in slowdowns:
        for known in reversed(groups):
            first, is_open = known[0], any(each.ended is None or each.ended >= new.found for each in known)
            vague = min(first.found - first.since, new.found - new.since)
            if is_open and abs(new.since - first.since) <= max(TOGETHER, vague):
                known.append(new)
                break
        else:
            groups.append([new])
    return groups


def find_episodes(judged: Judgement, at: int) -> list[Episode]:
    """Return the episodes that were found up to a night, by its position, open or over as known then."""
    groups = group(slowdown for slowdown in judged.detector.slowdowns if slowdown.found <= at)
    return [_episode(judged, number, slowdowns, at) for number, slowdowns in enumerate(groups, 1)]


def _episode(judged: Judgement, number: int, group: Sequence[Slowdown], at: int) -> Episode:
    slowdowns = tuple(sorted(group, key=lambda slowdown: -slowdown.size))
    figures = tuple(judged.watched[slowdown.figure] for slowdown in slowdowns)
    ends = [slowdown.ended for slowdown in slowdowns if slowdown.ended is not None and slowdown.ended <= at]
    ended = max(ends) if len(ends) == len(slowdowns) else None
    found, since = group[0].found, group[0].since
    shape, begun = judged.shapes.get((slowdowns[0].figure, slowdowns[0].found), (STEP, since))
    if shape.kind == "creep" and shape.nights >= FEWEST_OF_CREEP:
        since = min(begun, found)
    else:
        shape = STEP
    until = at if ended is None else max(found, ended - TOGETHER)
    tests = dict.fromkeys((figure.figure == CANARY, figure.key) for figure in figures)
    early, late = judged.nights[: max(0, since - 1)][-BEFORE:], judged.nights[since + 1 : until + 1]
    before, now = (
        {key: [job for night in part for job in night.measured(key)] for _, key in tests} for part in (early, late)
    )
    parts = ((key.test, culprit(CANARY if canary else key.test, now[key], before[key])) for canary, key in tests)
    states = ([job.state for jobs in side.values() for job in jobs] for side in (before, now))
    worse, usual = range(since, until + 1), range(max(0, since - nodes.BEFORE), since)
    by_nodes = explain_by_nodes(judged.nights[: until + 1], figures, worse, usual)
    return Episode(
        number,
        since,
        found,
        ended,
        figures,
        slowdowns,
        shape,
        parts=tuple(parts),
        nodes=by_nodes,
        changed=tuple(what_changed(*states)),
        state=_state(judged, slowdowns, is_open=ended is None, by_nodes=by_nodes.outcome == "explained"),
        nights_a_month=_nights_a_month([judged.nights[each] for each in figures[0].jobs if since <= each <= until]),
    )


def _nights_a_month(nights: Sequence[Night]) -> float:
    """Return how many such nights there are in MONTH, by their dates; MONTH where these don't tell."""
    days = (nights[-1].began - nights[0].began).total_seconds() / DAY_S if nights else 0.0
    return MONTH * (len(nights) - 1) / days if days > 0 else MONTH


def _state(judged: Judgement, slowdowns: Sequence[Slowdown], *, is_open: bool, by_nodes: bool) -> EpisodeState:
    """Return explained where nodes explain it, or where it is over without having come back by itself."""
    if by_nodes or not (is_open or all(slowdown.returned for slowdown in slowdowns)):
        return "explained"
    known = sum(judged.detector.state(slowdown.figure) is not None for slowdown in slowdowns)
    return "open" if is_open else "learnt" if 2 * known >= len(slowdowns) else "closed"


def explain_by_nodes(
    nights: Sequence[Night], figures: Iterable[FigureHistory], worse: Collection[int], before: Iterable[int]
) -> Explanation:
    """Tell whether nodes explain that figures are worse in these nights. before: nights that tell what is usual."""
    usual = nodes.how_bad(((one.key, one.figure) for one in figures), (job for at in before for job in nights[at].jobs))
    return nodes.explain(nights, worse, usual)


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
    by_nodes = explain_by_nodes(judged.nights, figures, inside, slowest.jobs.keys() - inside)
    return MachineState(figures, expm1(state.size), len(inside), state.of, state.runs, by_nodes)
