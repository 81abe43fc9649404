"""Schema of a validation, which says how well the model predicts, with what is derived from its rows. No torch."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import nan
from statistics import mean
from typing import Literal, NamedTuple

from pydantic import Field

from engine.data.dataset import Samples
from engine.planning.rank import TOLD_APART
from engine.result import metrics
from engine.result.schema.step import GridText
from engine.result.schema.tuning import ModeName
from engine.schema import Document, Record
from engine.validation.trainer_rows import TrainerRow
from systems import Dtype

SCHEMA: Literal["par4d.validation"] = "par4d.validation"
VERSION: Literal[1] = 1
CLOSE = 0.15
"""A prediction that is off by more is no good one: the page then has a reason, or says that none is known."""
NOT_KNOWN = "not known"
"""Reason of an effect that is missed where none is known."""


class PublishedRow(Record):
    """Published time of a batch beside the predicted one, on the grid that the planner takes."""

    source: str
    system: str
    model: str
    devices: int
    sequences: int
    measured_s: float
    grid: GridText
    micro_batch: int
    predicted_s: float
    low_s: float
    high_s: float
    compute_s: float
    exposed_s: dict[str, float]
    baseline_s: float
    """Time at the mean flop/s of the rows to which the machine is fitted."""
    fitted: bool
    """Whether the machine is fitted to this row."""


class GridRow(Record):
    """Measured grid beside what is predicted of it, with its places in three orders.

    Runs that an order doesn't tell apart, as the equations don't the pipelines of a grid, share their mean place.
    """

    name: str
    """Grid, with the schedule and micro-batch of a pipeline."""
    grid: GridText
    measured_s: float
    measured_exposed_s: float
    predicted_s: float
    low_s: float
    high_s: float
    exposed_s: float
    equations_s: float
    """Communication by Eq. 1 to 7."""
    agnostic_s: float
    """Communication by Eq. 1 to 6 with one bandwidth for all axes."""
    place: float = Field(ge=1)
    """Place in the simulated order."""
    place_by_equations: float = Field(ge=1)
    place_agnostic: float = Field(ge=1)
    fitted: bool

    @property
    def compute_error(self) -> float:
        """Return the error of what isn't exposed communication; NaN where nothing else was measured."""
        measured_s = self.measured_s - self.measured_exposed_s
        return metrics.prediction_error(self.predicted_s - self.exposed_s, measured_s) if measured_s > 0 else nan


OrderName = Literal["planned", "simulated", "equations", "agnostic"]

PLANNED = (
    f"A plan has the planned one: simulated times count where they differ by more than {100 * TOLD_APART:g} %, which "
    "was read off the jobs of 2026-11-22 and decides one of them, and of schedules that are as fast the first is taken."
)
TOP = 10
"""Number of the fastest measured grids that count as efficient (axonn-sc24 V-B)."""


class GridOrder(Record):
    """Order of a job's grids, judged by the measured times. A plan has the planned one (planning/rank.py)."""

    name: OrderName
    efficient: float
    """Number of the TOP fastest measured among its first TOP; of those that it doesn't tell apart a share."""
    place_of_fastest: float
    spearman: float
    """Rank correlation with the measured times."""
    lost: float | None = None
    """Part by which the measured time of its first grid exceeds the fastest."""


def judge_order(name: OrderName, places: Mapping[str, float], measured_s: Mapping[str, float]) -> GridOrder:
    """Judge an order of runs by their measured times, which begin with the fastest.

    places: of each run in the order. Those that it doesn't tell apart share the mean of their places, and where they
    are the first any of them may be taken: their mean time counts.
    """
    fastest, best = list(measured_s), min(places.values())
    first = [measured_s[run] for run, place in places.items() if place == best]
    return GridOrder(
        name=name,
        efficient=count_efficient(places, fastest),
        place_of_fastest=places[fastest[0]],
        spearman=metrics.spearman([(place, places[run]) for place, run in enumerate(fastest, 1)]),
        lost=metrics.lost_by_order(mean(first), measured_s[fastest[0]]),
    )


def count_efficient(places: Mapping[str, float], fastest: Sequence[str], top: int = TOP) -> float:
    """Count the first runs of an order that are among the fastest measured, of those that share a place a share.

    fastest: all runs, which begin with the fastest. top: how many of either are meant.
    """
    every = list(places.values())
    return sum(_share_among_first(places[run], every, top) for run in fastest[:top])


def _share_among_first(place: float, places: Sequence[float], top: int) -> float:
    """Give the share of a run of that place that is among the first: part of it where several share the place."""
    sharing = sum(other == place for other in places)
    before = place - (sharing + 1) / 2
    return min(max((top - before) / sharing, 0.0), 1.0)


class Proof(NamedTuple):
    """Worth of an order over several jobs."""

    name: OrderName
    lost: float
    """Mean of what its first grids lose."""
    spearman: float
    """Mean rank correlation."""
    right: int
    """Number of jobs of which its first grid is the fastest."""
    jobs: int


def judge_orders(jobs: Iterable[Sequence[GridOrder]]) -> list[Proof]:
    """Judge the orders of all jobs, the best first: least lost by the first grids, then the closest order."""
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


class JobRows(Record):
    """Grids of one job, the fastest first, and the judged orders."""

    name: str
    system: str
    source: str
    model: str
    samples: Samples = "sequences"
    sequences: int
    grids: tuple[GridRow, ...]
    orders: tuple[GridOrder, ...]


class Effect(Record):
    """Effect of a change, predicted and published: the percentage of the time that it saves, or a figure itself."""

    name: str
    setting: str
    unit: Literal["%", "s"]
    predicted: float
    published_low: float
    published_high: float
    source: str
    reason: str = ""
    """Why the prediction may lie elsewhere."""

    @property
    def off(self) -> float:
        """Return the part by which the prediction lies outside of what was published; negative below it, 0 within."""
        nearest = min(max(self.predicted, self.published_low), self.published_high)
        return metrics.prediction_error(self.predicted, nearest) if nearest else 0.0


SQUARES = "squares"
"""Name of the job of square products, by which the empirical peak is known."""
NEARLY_NOTHING = 0.1
"""Part of a product's time below which its arithmetic is nothing beside its launch."""
Rule = Literal["first", "second"]
RULES: dict[Rule, str] = {
    "first": "by the rule that was fixed before anything was measured a kernel takes 4 us at least",
    "second": "by a rule that came after the first had failed a kernel takes at least what launching the smallest "
    "product took, where the host launches one upon the other",
}


class MeasuredProduct(Record):
    """Time of a product of [m, k] by [k, n], in the mode in which PyTorch multiplies there."""

    m: int
    n: int
    k: int
    mode: ModeName
    time_s: float

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


class MeasuredProducts(Record):
    """Products measured on a device: of SQUARES, and of jobs those of a rank's linear layers, each shape once."""

    device: str
    """Whole name that PyTorch gives it."""
    source: str
    precision: Dtype
    jobs: dict[str, tuple[MeasuredProduct, ...]]

    @property
    def launch(self) -> MeasuredProduct | None:
        """Return the product of the fewest flops, if nearly all that it takes is its launch."""
        smallest = min((product for some in self.jobs.values() for product in some), key=lambda product: product.flops)
        return smallest if smallest.flops / self.empirical_peak < NEARLY_NOTHING * smallest.time_s else None

    @property
    def empirical_peak(self) -> float:
        """Give the best flop/s of the square products, or of all where there are none (axonn-sc24 VI-C)."""
        every = self.jobs.get(SQUARES) or [product for some in self.jobs.values() for product in some]
        return max(product.flops / product.time_s for product in every)


class ProductRow(MeasuredProduct):
    """Measured product of a job beside its predicted time, and the time at one rate for all products."""

    job: str
    predicted_s: float
    one_rate_s: float

    @property
    def error(self) -> float:
        return metrics.prediction_error(self.predicted_s, self.time_s)

    @property
    def one_rate_error(self) -> float:
        return metrics.prediction_error(self.one_rate_s, self.time_s)


class DeviceProducts(Record):
    """Predictions of a device's measured products, each job's by the other jobs."""

    device: str
    source: str
    precision: Dtype
    rule: Rule
    empirical_peak: float
    kernel_s: float
    """Least time of a kernel by this rule."""
    fitted: dict[str, float]
    """By job, the share of the empirical peak that the other jobs gave."""
    rows: tuple[ProductRow, ...]

    def of(self, job: str) -> list[ProductRow]:
        return [row for row in self.rows if row.job == job]

    @property
    def long(self) -> list[ProductRow]:
        """List those that take more than twice what a kernel does, so that launches don't decide."""
        return [row for row in self.rows if row.time_s > 2 * self.kernel_s]


def count_close(rows: Sequence[ProductRow], *, at_one_rate: bool = False) -> int:
    """Count the rows that are predicted within CLOSE."""
    return sum(abs(row.one_rate_error if at_one_rate else row.error) <= CLOSE for row in rows)


class Validation(Document):
    """Predictions of all published and measured rows."""

    schema_: Literal["par4d.validation"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1] = VERSION
    published: tuple[PublishedRow, ...] = ()
    jobs: tuple[JobRows, ...] = ()
    effects: tuple[Effect, ...] = ()
    products: tuple[DeviceProducts, ...] = ()
    trainers: tuple[TrainerRow, ...] = ()
