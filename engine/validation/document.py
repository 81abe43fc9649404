"""This is the schema of a validation, which says how well the model predicts, and of the rows that judge it."""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Literal, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from engine import yaml_text
from engine.batch import Batch
from engine.data.dataset import Samples
from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.overlap.flags import Overlap
from engine.published import Number, select
from engine.result import metrics
from engine.result.grid_text import GridText
from engine.schema import Document, Record, first_problem
from engine.training_record import Training
from engine.validation.orders import Order
from engine.validation.product_rows import DeviceProducts, MeasuredProducts
from systems import Measured

SCHEMA: Literal["par4d.validation"] = "par4d.validation"
VERSION: Literal[1] = 1
FOLDER = Path(__file__).parent / "rows"
MEASURED = FOLDER / "measured"
_Kind = TypeVar("_Kind")


class PublishedSeries(Record):
    """A paper published the times of batches of so many sequences, by model and number of devices.

    overlap: what the paper hides.
    """

    source: str
    system: str
    sequences: int
    overlap: str
    batch_s: dict[str, dict[int, float]]


class MeasuredRun(Record):
    """A job was measured on a grid; of several stages under a schedule, in micro-batches of so many sequences, or with
    all of a rank at once.

    exposed_s: communication that compute waits for; of a pipeline idle time, too, as the mean of its stages.
    """

    grid: GridText
    schedule: str | None = None
    micro_batch: int | None = None
    time_s: float
    exposed_s: float

    @property
    def name(self) -> str:
        """Name it for a person, and within a job."""
        words = [self.grid if self.schedule is None else f"{self.grid} {self.schedule}"]
        return ", ".join([*words, *([f"micro-batch {self.micro_batch}"] if self.micro_batch else [])])


class MeasuredJob(Record):
    """suites/model_validation.py has measured every grid of a job; the fastest is the first.

    exposed_s: communication that compute waits for, by axis. fitted: the grids to which the machine is fitted.
    pipelines: what suites/pipeline.py has measured of the same job, the fastest first.
    """

    name: str
    system: str
    source: str
    model: str
    ranks: int
    sequences: int
    precision: Literal["bf16", "fp16", "fp32", "fp64"]
    overlap: str
    checkpoint_activations: bool
    fitted: tuple[GridText, ...]
    time_s: dict[GridText, float]
    exposed_s: dict[GridText, dict[str, float]]
    pipelines: tuple[MeasuredRun, ...] = ()

    @property
    def runs(self) -> list[MeasuredRun]:
        """List all that was measured, the fastest first."""
        whole = [
            MeasuredRun(grid=grid, time_s=time_s, exposed_s=sum(self.exposed_s[grid].values()))
            for grid, time_s in self.time_s.items()
        ]
        return sorted([*whole, *self.pipelines], key=lambda run: run.time_s)

    @property
    def training(self) -> Training:
        return Training(
            lookup(self.model),
            Batch(self.sequences),
            self.precision,
            checkpoint_every=int(self.checkpoint_activations),
            overlap=Overlap.parse(self.overlap),
        )


class MeasuredRows(Record):
    """A campaign has jobs, and the machines on which they were measured, as these had been calibrated; and products."""

    machines: dict[str, Measured] = {}
    jobs: tuple[MeasuredJob, ...] = ()
    products: tuple[MeasuredProducts, ...] = ()


def published_series() -> list[PublishedSeries]:
    """List the published times of our own systems, a series a paper and system; the papers print no grids."""
    series: dict[tuple[str, str], list[Number]] = {}
    for one in select(metric="time_s", highest=None):
        if one.overlap:
            series.setdefault((one.paper, one.system), []).append(one)
    return [_series(numbers) for numbers in series.values()]


def _series(numbers: Sequence[Number]) -> PublishedSeries:
    first = numbers[0]
    assert first.batch_tokens
    assert first.sequence
    batch_s: dict[str, dict[int, float]] = {}
    for one in numbers:
        batch_s.setdefault(one.model.lower(), {})[int(one.devices or 0)] = one.si
    return PublishedSeries(
        source=f"{first.paper} {first.where}: {first.note}",
        system=first.system.lower(),
        sequences=first.batch_tokens // first.sequence,
        overlap=first.overlap,
        batch_s=batch_s,
    )


def campaigns(folder: Path = MEASURED) -> list[MeasuredRows]:
    """Read the rows of each campaign, a file each, the oldest first. Raises UsageError for a file without such rows."""
    return [_read(path, MeasuredRows) for path in sorted(folder.glob("*.yaml"))]


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
    """A published time of a batch stands beside the predicted one, on the grid that the planner takes.

    baseline_s: the time at the mean flop/s of the rows to which that machine is fitted. fitted: whether this is one.
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
    """A measured grid stands beside what is predicted of it. name: with the schedule and micro-batch of a pipeline.

    equations_s, agnostic_s: communication by Eq. 1 to 7, and by Eq. 1 to 6 with one bandwidth for all axes. place,
    place_by_equations, place_agnostic: in the simulated order and in the orders by these two. Runs that one doesn't
    tell apart, as these two do not the pipelines of a grid, share the mean of their places.
    """

    name: str
    grid: GridText
    measured_s: float
    measured_exposed_s: float
    predicted_s: float
    low_s: float
    high_s: float
    exposed_s: float
    equations_s: float
    agnostic_s: float
    place: float = Field(ge=1)
    place_by_equations: float = Field(ge=1)
    place_agnostic: float = Field(ge=1)
    fitted: bool

    @property
    def compute_error(self) -> float:
        """Return the error of what isn't exposed communication; NaN where nothing else was measured."""
        measured_s = self.measured_s - self.measured_exposed_s
        return metrics.prediction_error(self.predicted_s - self.exposed_s, measured_s) if measured_s > 0 else nan


class JobRows(Record):
    """These are the grids of one job, the fastest first, and the judged orders. samples: what its sequences are."""

    name: str
    system: str
    source: str
    model: str
    samples: Samples = "sequences"
    sequences: int
    grids: tuple[GridRow, ...]
    orders: tuple[Order, ...]


class Effect(Record):
    """The effect of a change is predicted and published: the percentage of the time that it saves, or seconds. Of other
    figures it is these themselves. reason: why it may lie elsewhere.
    """

    name: str
    setting: str
    unit: Literal["%", "s"]
    predicted: float
    published_low: float
    published_high: float
    source: str
    reason: str = ""

    @property
    def off(self) -> float:
        """Return by what part the predicted one lies outside of what was published; negative below it, 0 within."""
        nearest = min(max(self.predicted, self.published_low), self.published_high)
        return metrics.prediction_error(self.predicted, nearest) if nearest else 0.0


class Validation(Document):
    schema_: Literal["par4d.validation"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1] = VERSION
    published: tuple[PublishedRow, ...] = ()
    jobs: tuple[JobRows, ...] = ()
    effects: tuple[Effect, ...] = ()
    products: tuple[DeviceProducts, ...] = ()
