"""How well the model predicts, as a document: published times, and every grid of small jobs that were measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from engine import yaml_text
from engine.batch import Batch
from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.overlap.flags import Overlap
from engine.result import metrics
from engine.result.schema import GridText
from engine.schema import Record, first_problem
from engine.training_record import Training
from systems import Measured

SCHEMA: Literal["par4d.validation"] = "par4d.validation"
VERSION: Literal[1] = 1
FOLDER = Path(__file__).parent / "rows"
_Kind = TypeVar("_Kind")

TOP = 10
"""Grids that count as efficient, the fastest measured (axonn-sc24 V-B)."""


class PublishedSeries(Record):
    """Published times of a batch of so many sequences. overlap: what the paper hides. fitted: devices of the rows that
    the machine is fitted to.
    """

    source: str
    system: str
    sequences: int
    overlap: str
    fitted: tuple[int, ...]
    batch_s: dict[str, dict[int, float]]


class MeasuredJob(Record):
    """Every grid of a job as suites/model_validation.py has measured it, best first.

    exposed_s: communication that compute waits for, by axis. fitted: the grids that the machine is fitted to.
    """

    name: str
    system: str
    source: str
    model: str
    ranks: int
    sequences: int
    precision: Literal["bf16", "fp32", "fp64"]
    overlap: str
    checkpoint_activations: bool
    fitted: tuple[GridText, ...]
    time_s: dict[GridText, float]
    exposed_s: dict[GridText, dict[str, float]]

    @property
    def training(self) -> Training:
        """What was trained."""
        return Training(
            lookup(self.model),
            Batch(self.sequences),
            self.precision,
            checkpoint_activations=self.checkpoint_activations,
            overlap=Overlap.parse(self.overlap),
        )


class MeasuredRows(Record):
    """Jobs, and the machines that they were measured on, as these had been calibrated."""

    machines: dict[str, Measured]
    jobs: tuple[MeasuredJob, ...]


def published(path: Path = FOLDER / "published.yaml") -> list[PublishedSeries]:
    """The published rows. Raises UsageError for a file that is not such a list."""
    return _read(path, list[PublishedSeries])


def measured_rows(path: Path = FOLDER / "measured.yaml") -> MeasuredRows:
    """The measured jobs. Raises UsageError for a file that is not such rows."""
    return _read(path, MeasuredRows)


def _read(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return TypeAdapter(kind).validate_python(yaml_text.parse(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        raise UsageError(f"{path} are no valid rows: {first_problem(error)}") from None


class PublishedRow(Record):
    """A published time of a batch beside the predicted one, on the grid that the planner takes.

    baseline_s: the same share of the peak as the fitted rows of that machine have on average. fitted: whether the
    machine was fitted to this row.
    """

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
    fitted: bool


class GridRow(Record):
    """A measured grid beside what is predicted of it. equations_s, agnostic_s: communication by Eq. 1 to 7, and by
    Eq. 1 to 6 with one bandwidth for all. The places are those in the order by each.
    """

    grid: GridText
    measured_s: float
    measured_exposed_s: float
    predicted_s: float
    low_s: float
    high_s: float
    exposed_s: float
    equations_s: float
    agnostic_s: float
    place: int = Field(ge=1)
    place_by_equations: int = Field(ge=1)
    place_agnostic: int = Field(ge=1)
    fitted: bool


class Order(Record):
    """How good an order of a job's grids is. efficient: of its first TOP, those among the TOP fastest measured.
    place_of_fastest: where it has the fastest. spearman: rank correlation with the measured times.
    """

    name: Literal["simulated", "equations", "agnostic"]
    efficient: int
    place_of_fastest: int
    spearman: float


class JobRows(Record):
    """One job's grids, the fastest first, and how good the orders are."""

    name: str
    system: str
    source: str
    model: str
    sequences: int
    grids: tuple[GridRow, ...]
    orders: tuple[Order, ...]


class Effect(Record):
    """What a change brings, predicted and published: of a time without it, the part that it saves; or seconds."""

    name: str
    setting: str
    unit: Literal["%", "s"]
    predicted: float
    published_low: float
    published_high: float
    source: str


class Validation(Record):
    """Everything."""

    schema_: Literal["par4d.validation"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1] = VERSION
    published: tuple[PublishedRow, ...] = ()
    jobs: tuple[JobRows, ...] = ()
    effects: tuple[Effect, ...] = ()

    def as_json(self) -> str:
        """The document."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def places(costs: Mapping[str, float]) -> dict[str, int]:
    """Where each stands from the lowest cost, from 1; equal ones in their own order."""
    return {key: place for place, key in enumerate(sorted(costs, key=lambda key: costs[key]), 1)}


Orders = Literal["simulated", "equations", "agnostic"]


def order(name: Orders, predicted: Sequence[str], fastest: Sequence[str]) -> Order:
    """Of grids in the predicted order, and from the fastest measured on."""
    place_of = {grid: place for place, grid in enumerate(predicted)}
    return Order(
        name=name,
        efficient=len(set(predicted[:TOP]) & set(fastest[:TOP])),
        place_of_fastest=place_of[fastest[0]] + 1,
        spearman=metrics.spearman([(place, place_of[grid]) for place, grid in enumerate(fastest)]),
    )
