"""This part of result.json and of a profile's trace says what was profiled, where it is, and the run's own figures."""

from typing import Literal

from pydantic import Field

from engine.result.gate import Outcome
from engine.result.schema.step import AxisTime, GridText, LaneTime
from engine.schema import Document, Record

PROFILE_SCHEMA: Literal["par4d.profile"] = "par4d.profile"
KEY = "par4d"
"""The object of a trace file holds a Profiled under this key."""


class ProfileTrace(Record):
    """It is the profile of one rank: its file, or why it couldn't be written."""

    rank: int
    file: str | None = None
    unwritten: str | None = None


class Profile(Record):
    """It is what a run profiled: iterations, which don't count, on some of its ranks."""

    iterations: tuple[int, ...]
    traces: tuple[ProfileTrace, ...]


class RecordedStep(Record):
    """It is one profiled iteration as the recorder has it; the figures are those of Breakdown."""

    iteration: int
    step_s: float
    exposed_s: float
    hidden_s: float
    axes: tuple[AxisTime, ...] = ()


class Profiled(Document):
    """A trace file of a profile says this of the run that wrote it.

    lanes_in_memory: those whose collectives go through memory that ranks share; older files don't say.
    """

    schema_: Literal["par4d.profile"] = Field(default=PROFILE_SCHEMA, alias="schema")
    version: Literal[1] = 1
    rank: int
    ranks: int
    grid: GridText
    overlap: str
    device: Literal["cpu", "cuda"]
    lanes_in_memory: tuple[str, ...] | None = None
    steps: tuple[RecordedStep, ...]


class OperationTime(Record):
    """It is a kernel or an operator by its name; an operator's seconds are without those that it calls."""

    name: str
    calls: int
    time_s: float


class LayerTime(Record):
    """These are seconds of a layer without those that it holds: forward (with recomputation) and backward."""

    name: str
    forward_s: float
    backward_s: float


class Difference(Record):
    """It is a figure of a step as the trace has it and as the run recorded it. difference: how far
    metrics.trace_by_record is from 1 in this step.

    reason: where they don't agree in this step, what was computed to make up for it; None where nothing does. low,
    high: the interval of trace_by_record over all steps of the trace, None of fewer than six; outcome: whether it tells
    that they agree. It never passes by a reason, and doesn't fail where the reason makes up for it in these steps.
    """

    figure: str
    traced_s: float
    recorded_s: float
    difference: float
    reason: str | None = None
    low: float | None = None
    high: float | None = None
    outcome: Outcome = "undecided"


class TraceBreakdown(Document):
    """It says where the time of a profiled step went, in seconds of one rank, by its trace.

    compute_s + exposed_s is the step, hidden_s what of compute has a collective in flight, as in Breakdown. work_s
    (kernels, or operators on CPUs), copies_s (of memory, with no work beside them) and rest_s are compute; rest_s is
    idle, on CPUs what is outside operators. agrees: whether every figure does with the run's own record in this step;
    outcome: whether the trace does, by all its steps. lost: collectives in these steps that the trace has no events of,
    of which one is enough to fail. Version 1 had only agrees.
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
    copies_s: float
    rest_s: float
    exposed_s: float
    hidden_s: float
    share_hidden: float | None
    axes: tuple[AxisTime, ...]
    lanes: tuple[LaneTime, ...]
    operations: tuple[OperationTime, ...]
    layers: tuple[LayerTime, ...]
    differences: tuple[Difference, ...]
    agrees: bool
    steps: int
    lost: int
    outcome: Outcome
    notes: tuple[str, ...]
