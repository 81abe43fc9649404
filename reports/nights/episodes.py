"""Episodes: slowdowns of a system's figures that begin together, as one thing from its alarm to its end.

Nothing of them is stored: they are derived from the results database. Which were found, and which of them are open or
over, is told as it was known after any of its nights; their sizes, shapes and states as known after the last one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import expm1
from typing import Literal

from reports.nights.culprit import culprit, what_changed
from reports.nights.judge import FigureHistory, Judgement
from reports.nights.levels import BASELINE, Slowdown
from reports.nights.nodes import Explanation, explain
from reports.nights.recurrence import Recurrence, recurrence_of
from reports.nights.shape import Shape, find_shape
from reports.read.history import Night
from systems.references import CANARY

TOGETHER = 2
"""Nights by which slowdowns of one episode begin apart at most, or as many as the faster of them took to be found."""
BEFORE = 20
"""Nights before a change that show how it was."""
STEP = Shape("step", 0)
FEWEST_OF_CREEP = 14
"""Nights since its beginning from which a creep is told from a step."""
MONTH = 30
"""Days."""
DAY_S = 86_400.0

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
    recurrence: Recurrence
    """Nights that were as slow, of an episode that came back by itself."""
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
        return growth(self.shape, self.nights_a_month)


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
    until = at if ended is None else max(slowdown.last or since for slowdown in slowdowns)
    shape, began = _shape(figures[0], slowdowns[0], until)
    if shape.kind == "creep":
        since = min(began, found)
    tests = dict.fromkeys((figure.figure == CANARY, figure.key) for figure in figures)
    early, late = judged.nights[: max(0, since - 1)][-BEFORE:], judged.nights[since + 1 : until + 1]
    before, now = (
        {key: [job for night in part for job in night.measured(key)] for _, key in tests} for part in (early, late)
    )
    parts = ((key.test, culprit(CANARY if canary else key.test, now[key], before[key])) for canary, key in tests)
    states = ([job.state for jobs in side.values() for job in jobs] for side in (before, now))
    by_nodes = explain(judged.nights[: until + 1], since, [(figure.key, figure.figure) for figure in figures])
    came_back = ended is not None and all(slowdown.returned for slowdown in slowdowns)
    recurrence = recurrence_of(judged.detector, slowdowns) if came_back and shape.kind == "step" else Recurrence()
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
        state=_state(by_nodes, recurrence, is_open=ended is None, came_back=came_back),
        recurrence=recurrence,
        nights_a_month=nights_of_a_month([judged.nights[each] for each in figures[0].jobs if since <= each <= until]),
    )


def _shape(figure: FigureHistory, slowdown: Slowdown, until: int) -> tuple[Shape, int]:
    """Return the shape of a figure's nights from a slowdown on up to one of them, and the night that it began."""
    nights, values = figure.follow(until)
    count = sum(at >= slowdown.since for at in nights)
    shape = find_shape(values[-BASELINE - 2 * count :], 2 * count)
    return (shape, nights[-shape.nights]) if shape.nights >= FEWEST_OF_CREEP else (STEP, slowdown.since)


def growth(shape: Shape, nights_a_month: float) -> tuple[float, float, float]:
    """Return by how much a slope makes a figure worse in a month, as a fraction, and both ends of its interval."""
    slope, low, high = (nights_a_month * a_night for a_night in (shape.slope, shape.low, shape.high))
    return expm1(slope), expm1(low), expm1(high)


def nights_of_a_month(nights: Sequence[Night]) -> float:
    """Return how many such nights there are in MONTH, by their dates: one a day at most, as nights that are run one
    after the other stand for days.
    """
    days = (nights[-1].began - nights[0].began).total_seconds() / DAY_S if nights else 0.0
    return MONTH * min(1.0, (len(nights) - 1) / days) if days > 0 else MONTH


def _state(by_nodes: Explanation, recurrence: Recurrence, *, is_open: bool, came_back: bool) -> EpisodeState:
    """Return explained where nodes explain it, or where it is over without having come back by itself."""
    if by_nodes.outcome == "explained" or not (is_open or came_back):
        return "explained"
    return "open" if is_open else "learnt" if recurrence.runs > 1 else "closed"
