"""Rows that trainers publish of accelerators which nobody here has calibrated: the rules, committed before any fit,
what each row came to, and the verdict on all of them (rows/trainers.yaml). No torch.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import log
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field
from scipy.stats import binomtest

from engine import published, yaml_text
from engine.errors import UsageError
from engine.published import Number
from engine.result import gate, metrics
from engine.result.gate import CONFIDENCE, Interval, Outcome
from engine.schema import Record
from engine.training_record import TrainingOptions

FILE = Path(__file__).parent / "rows" / "trainers.yaml"
PREDICTED: Literal["bf16"] = "bf16"
"""Number format of the rows that are predicted."""
Use = Literal["fitted", "of a fitted network", "judged"]
NumberName = Literal["products", "attention", "memory"]


class Limits(Record):
    """Limits of a system's judged rows."""

    median: float = Field(gt=0)
    """Median absolute error of a step's time."""
    held: float = Field(gt=0, lt=1)
    """Share of the rows within their intervals."""


class FittedRow(Record):
    """Name of a row that something is fitted to; systems are named as published numbers name them."""

    system: str
    model: str
    devices: int
    sequence: int

    @property
    def text(self) -> str:
        return f"{self.model} on {self.devices} at {self.sequence}"


class Rules(Record):
    """Rules of rows/trainers.yaml."""

    limits: Limits
    fitted: tuple[FittedRow, ...] = Field(min_length=1, max_length=6)
    numbers: dict[str, tuple[NumberName, ...]]
    """Numbers of each system that are fitted."""
    training: TrainingOptions
    overlap: str

    def list_fitted(self, system: str) -> list[FittedRow]:
        """List the rows of a system that are fitted to."""
        return [row for row in self.fitted if row.system == system]

    def choose_use(self, number: Number) -> Use:
        """Say what a row is for. Other rows of a fitted network judge only where no other network is known."""
        mine = self.list_fitted(number.system)
        if any(is_of(row, number) for row in mine):
            return "fitted"
        networks = {one.model for one in rows() if one.system == number.system}
        fitted = {row.model for row in mine}
        return "of a fitted network" if number.model in fitted and networks - fitted else "judged"


class TrainerRow(Record):
    """Published time of a trainer's step beside the predicted ones."""

    source: str
    system: str
    """Name of its system, as the files of systems/ have it."""
    model: str
    devices: int
    sequence: int
    sequences: int
    micro_batch: int
    recomputed: str
    compiled: bool = False
    lacking: str = ""
    """Parts of the run that the engine doesn't have."""
    measured_s: float = Field(gt=0)
    predicted_s: float = Field(gt=0)
    low_s: float
    high_s: float
    by_sheets_s: float = Field(gt=0)
    """Time predicted by data sheets alone."""
    use: Use

    @property
    def error(self) -> float:
        return metrics.prediction_error(self.predicted_s, self.measured_s)

    @property
    def holds(self) -> bool:
        """Whether the published time lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def tokens_per_s(self) -> float:
        """Published rate."""
        return self.sequences * self.sequence / self.measured_s


class TrainerVerdict(NamedTuple):
    """Verdict on the judged rows of a system, each limit's interval by the rows taken as independent."""

    system: str
    judged: int
    median: float
    median_interval: Interval
    by_sheets: float
    """Median absolute error by data sheets alone."""
    held: int
    held_interval: Interval
    close: Outcome
    """Whether the median is within its limit."""
    holds: Outcome
    """Whether intervals hold as often as they should."""


@cache
def rules(path: Path = FILE) -> Rules:
    """Read the rules. Raises UsageError for a fitted row that isn't published, or a file that is something else."""
    try:
        found = Rules.model_validate(yaml_text.read(path))
    except ValueError as error:
        raise UsageError(f"{path} is no list of rules: {error}") from None
    for row in found.fitted:
        if sum(is_of(row, number) for number in rows()) != 1:
            raise UsageError(f"{path} is fitted to {row.text} of {row.system}, which isn't one published row.")
    return found


@cache
def rows() -> tuple[Number, ...]:
    """List the published rates of trainers that are predicted."""
    return tuple(one for one in published.select(metric="tokens_per_s") if one.dtype == PREDICTED)


def is_of(row: FittedRow, number: Number) -> bool:
    """Return whether the name is that of a published row."""
    return all(getattr(number, name) == value for name, value in row)


def measured_s(number: Number) -> float:
    """Return the seconds of a step from its published rate."""
    assert number.batch_tokens
    return number.batch_tokens / number.si


def judge(found: Sequence[TrainerRow], limits: Limits) -> list[TrainerVerdict]:
    """Judge the rows of each system that nothing was fitted to."""
    by_system: dict[str, list[TrainerRow]] = {}
    for row in found:
        if row.use == "judged":
            by_system.setdefault(row.system, []).append(row)
    return [_judged(system, some, limits) for system, some in by_system.items()]


def _judged(system: str, found: Sequence[TrainerRow], limits: Limits) -> TrainerVerdict:
    off = [abs(row.error) for row in found]
    sheets = [abs(metrics.prediction_error(row.by_sheets_s, row.measured_s)) for row in found]
    held = sum(row.holds for row in found)
    share = binomtest(held, len(found)).proportion_ci(CONFIDENCE)
    median_interval, held_interval = gate.over_rounds(off), Interval(float(share.low), float(share.high))
    return TrainerVerdict(
        system=system,
        judged=len(found),
        median=metrics.median_absolute_error(off),
        median_interval=median_interval,
        by_sheets=metrics.median_absolute_error(sheets),
        held=held,
        held_interval=held_interval,
        close=gate.at_most(median_interval, limits.median),
        holds=gate.at_least(held_interval, limits.held),
    )


def errors_by_network(found: Mapping[Number, float], system: str) -> dict[str, list[float]]:
    """Return ln(predicted / measured) of the judged rows of a system by network, and no error of the others."""
    errors: dict[str, list[float]] = {}
    for number, predicted_s in found.items():
        if number.system == system:
            mine = errors.setdefault(number.model, [])
            if rules().choose_use(number) == "judged":
                mine.append(log(predicted_s / measured_s(number)))
    return errors
