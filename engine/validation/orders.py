"""Orders of a job's runs, predicted ones, are judged by their measured times."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import mean
from typing import Literal, NamedTuple

from engine.planning.rank import TOLD_APART
from engine.result import metrics
from engine.schema import Record

OrderName = Literal["planned", "simulated", "equations", "agnostic"]

PLANNED = (
    f"A plan has the planned one: simulated times count where they differ by more than {100 * TOLD_APART:g} %, which "
    "was read off the jobs of 2026-11-22 and decides one of them, and of schedules that are as fast the first is taken."
)
TOP = 10
"""So many grids, the fastest measured, count as efficient (axonn-sc24 V-B)."""


class Order(Record):
    """An order of a job's grids is judged by the measured times. A plan has the planned one (planning/rank.py).

    lost: by what part the measured time of its first grid exceeds the fastest. efficient: how many of the TOP fastest
    measured are among its first TOP, of those that it doesn't tell apart a share. place_of_fastest: its place of the
    fastest one. spearman: rank correlation with the measured times.
    """

    name: OrderName
    efficient: float
    place_of_fastest: float
    spearman: float
    lost: float | None = None


def judged(name: OrderName, places: Mapping[str, float], measured_s: Mapping[str, float]) -> Order:
    """Judge an order of runs by their measured times, which begin with the fastest.

    places: of each run in the order. Those that it doesn't tell apart share the mean of their places, and where they
    are the first any of them may be taken: their mean time counts.
    """
    fastest, best = list(measured_s), min(places.values())
    first = [measured_s[run] for run, place in places.items() if place == best]
    return Order(
        name=name,
        efficient=sum(among_first(places[run], list(places.values())) for run in fastest[:TOP]),
        place_of_fastest=places[fastest[0]],
        spearman=metrics.spearman([(place, places[run]) for place, run in enumerate(fastest, 1)]),
        lost=metrics.lost_by_order(mean(first), measured_s[fastest[0]]),
    )


def among_first(place: float, places: Sequence[float]) -> float:
    """Give the share of a run of that place that is among the first TOP: part of it where several share the place."""
    alike = sum(other == place for other in places)
    before = place - (alike + 1) / 2
    return min(max((TOP - before) / alike, 0.0), 1.0)


class Proof(NamedTuple):
    """It is how an order has proved over several jobs: the means of what its first grid loses, and of its rank
    correlation; and in how many of these jobs the first is the fastest.
    """

    name: OrderName
    lost: float
    spearman: float
    right: int
    jobs: int


def proved(jobs: Iterable[Sequence[Order]]) -> list[Proof]:
    """Judge the orders of all jobs, the best first: that whose first grids lose the least, and of several that with
    the closest order.
    """
    found: dict[OrderName, list[tuple[float, float]]] = defaultdict(list)
    for order in chain.from_iterable(jobs):
        if order.lost is not None:
            found[order.name].append((order.lost, order.spearman))
    proofs = [
        Proof(
            name,
            lost=mean(lost for lost, _ in some),
            spearman=mean(spearman for _, spearman in some),
            right=sum(lost <= 0 for lost, _ in some),
            jobs=len(some),
        )
        for name, some in found.items()
    ]
    return sorted(proofs, key=lambda proof: (proof.lost, -proof.spearman))
