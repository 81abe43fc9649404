"""Schema of profiles: in result.json, in a profile's trace, and of its breakdown."""

from typing import Literal, Self

from pydantic import Field, model_validator

from engine.result.gate import Outcome
from engine.result.schema.step import AxisTime, GridText, LaneTime
from engine.schema import Document, Record

PROFILE_SCHEMA: Literal["par4d.profile"] = "par4d.profile"
KEY = "par4d"
"""Key of the Profiled in the object of a trace file."""
ROUNDING = 1e-6
"""Part of a step by which its parts may be off."""


class ProfileTrace(Record):
    """Profile of one rank: its file, or why it couldn't be written."""

    rank: int
    file: str | None = None
    unwritten: str | None = None


class Profile(Record):
    """Profiled iterations of a run, which don't count, on some of its ranks."""

    iterations: tuple[int, ...]
    traces: tuple[ProfileTrace, ...]


class RecordedStep(Record):
    """Profiled iteration by the run's own record; figures are those of Breakdown."""

    iteration: int
    step_s: float
    exposed_s: float
    hidden_s: float
    axes: tuple[AxisTime, ...] = ()


class Profiled(Document):
    """The run that wrote a trace file."""

    schema_: Literal["par4d.profile"] = Field(default=PROFILE_SCHEMA, alias="schema")
    version: Literal[1] = 1
    rank: int
    ranks: int
    grid: GridText
    overlap: str
    device: Literal["cpu", "cuda"]
    lanes_in_memory: tuple[str, ...] | None = None
    """Lanes whose collectives go through memory that ranks share, in older files."""
    steps: tuple[RecordedStep, ...]


class StepParts(Record):
    """Parts of a profiled step of any trainer on one rank (engine/profiling/parts.py), the mean of some steps.

    As in TraceBreakdown, compute_s + exposed_s is the step, and compute_s is work_s + rest_s.
    """

    steps: int = Field(gt=0)
    step_s: float = Field(ge=0)
    compute_s: float = Field(ge=0)
    work_s: float = Field(ge=0)
    """Kernels and copies, or operators on CPUs."""
    rest_s: float
    """Neither work nor communication: idle, on CPUs with what is outside operators."""
    hidden_s: float = Field(ge=0)
    """Communication beside work."""
    exposed_s: float = Field(ge=0)
    """Communication without work beside it, in which waiting for slower ranks is included."""

    @property
    def alone_s(self) -> float:
        """Work with no communication beside it."""
        return max(0.0, self.work_s - self.hidden_s)

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        within = ROUNDING * self.step_s
        whole, compute = self.compute_s + self.exposed_s, self.work_s + self.rest_s
        if abs(whole - self.step_s) > within or abs(compute - self.compute_s) > within or self.rest_s < -within:
            raise ValueError("the parts don't add up to the step")
        if self.hidden_s > self.work_s + within:
            raise ValueError("more communication is hidden than there is work")
        return self


class OperationTime(Record):
    """Kernel or operator by its name; an operator's seconds are without those that it calls."""

    name: str
    calls: int
    time_s: float


class LayerTime(Record):
    """Seconds of a layer without those that it contains: forward (with recomputation) and backward."""

    name: str
    forward_s: float
    backward_s: float


class Difference(Record):
    """Figure of a step by the trace and by the run's own record."""

    figure: str
    traced_s: float
    recorded_s: float
    difference: float
    """Distance of metrics.trace_by_record from 1 in this step."""
    reason: str | None = None
    """Quantity computed to make up for a difference in this step."""
    low: float | None = None
    """Lower end of the interval of trace_by_record over all steps of the trace, None of fewer than six."""
    high: float | None = None
    outcome: Outcome = "undecided"
    """Whether the interval tells that they agree. No reason makes it pass; it doesn't fail where a reason makes up for
    the difference in these steps.
    """


class TraceBreakdown(Document):
    """Seconds of a profiled step of one rank, by its trace.

    As in Breakdown, compute_s + exposed_s is the step, and hidden_s part of compute_s, which is
    work_s + copies_s + rest_s.
    """

    schema_: Literal["par4d.breakdown"] = Field(default="par4d.breakdown", alias="schema")
    version: Literal[2] = 2
    trace: str
    rank: int
    ranks: int
    grid: GridText
    overlap: str
    device: Literal["cpu", "cuda"]
    iteration: int
    step_s: float
    compute_s: float
    work_s: float
    """Kernels, or operators on CPUs."""
    copies_s: float
    """Copies of memory, with no work beside them."""
    rest_s: float
    """Idle time; on CPUs what is outside operators."""
    exposed_s: float
    hidden_s: float
    share_hidden: float | None
    axes: tuple[AxisTime, ...]
    lanes: tuple[LaneTime, ...]
    operations: tuple[OperationTime, ...]
    layers: tuple[LayerTime, ...]
    differences: tuple[Difference, ...]
    agrees: bool
    """Whether every figure agrees with the run's own record in this step."""
    steps: int
    lost: int
    """Collectives in all steps that the trace has no events of; one is enough to fail."""
    outcome: Outcome
    """Whether the trace agrees, by all its steps."""
    notes: tuple[str, ...]
