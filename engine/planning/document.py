"""A plan as a document: what was asked, what was ranked by which rule, and the best grids. The one schema of it."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from engine.footprint.memory import RESERVE
from engine.grid import Axis
from engine.planning.origin import Origin
from engine.planning.rank import Candidate
from engine.result import metrics
from engine.result.schema import GridText
from engine.result.step import Timeline
from engine.schema import Record

SCHEMA: Literal["par4d.plan"] = "par4d.plan"
VERSION: Literal[1] = 1
SECONDS_A_DAY = 86400

Counting = Literal["equations", "as_run", "simulated"]


class Cost(Record):
    """Seconds of a step that an equation's collectives take along an axis, by the equations and as run."""

    equation: str
    axis: Axis
    equations_s: float
    as_run_s: float


class PlannedMemory(Record):
    """Bytes of a rank at the fullest moment of a step, by what they are for. of_device: share of a device's memory."""

    parts: dict[str, float]
    total: float
    of_device: float | None = None


class Row(Record):
    """One grid. What only a simulation tells is absent without one; days and device-hours are for the token budget.

    reduce_dtypes: in which gradients are summed along the axes that split rows; older plans don't say. exact: whether
    the whole network was traced, not few layers. peak_bytes: of that trace. timeline: of the fastest, of a network of
    timeline_layers.
    """

    place: int = Field(ge=1)
    grid: GridText
    micro_batch: int = Field(ge=1)
    equations_s: float
    as_run_s: float
    costs: tuple[Cost, ...]
    bytes_per_s: dict[Axis, float]
    memory: PlannedMemory
    reduce_dtypes: dict[Axis, str] = {}
    time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    compute_s: float | None = None
    hidden_s: float | None = None
    exposed_s: dict[Axis, float] | None = None
    exact: bool = False
    peak_bytes: int | None = None
    cached_blocks: int | None = None
    timeline: Timeline | None = None
    timeline_layers: int | None = None
    hfu: float | None = None
    mfu: float | None = None
    days: float | None = None
    device_hours: float | None = None


class GridPlan(Record):
    """What was asked, and the best grids for it. asked_sequences: of a batch, before it was rounded to what devices
    can share. machine: where the numbers of a simulated plan's machine come from. Bytes and seconds.
    """

    schema_: Literal["par4d.plan"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1] = VERSION
    system: str
    machine: Origin | None = None
    devices_per_node: int
    device_memory_bytes: float | None = None
    reserve: float = RESERVE
    model: str
    parameters: int
    devices: int
    asked_sequences: float
    sequences: int
    tokens: int
    precision: str
    checkpoint_activations: bool
    overlap: str
    token_budget: float
    placement_aware: bool
    ordered_by: Counting
    valid: int
    fit: int
    rows: tuple[Row, ...]

    def as_json(self) -> str:
        """The document."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"


def row(
    place: int,
    candidate: Candidate,
    bytes_per_s: dict[Axis, float],
    *,
    reduce_dtypes: dict[Axis, str],
    device_memory: float | None,
    tokens: int,
    token_budget: float,
    flops: tuple[int, int] = (0, 0),
    peak_flops: float | None = None,
) -> Row:
    """Of a candidate. bytes_per_s: what a group of each axis finds. flops: of a step, hardware's and the model's."""
    needs, grid = candidate.needs, candidate.grid
    costs = tuple(
        Cost(equation=equation, axis=axis, equations_s=seconds, as_run_s=candidate.as_run[equation, axis])
        for (equation, axis), seconds in candidate.equations.items()
    )
    told: dict[str, Any] = {}
    if forecast := candidate.forecast:
        step = forecast.step
        spent_s = metrics.time_to_solution(token_budget, metrics.rate(tokens, step.time_s))
        told = {
            "time_s": step.time_s,
            "interval_s": (step.low_s, step.high_s),
            "compute_s": step.compute_s,
            "hidden_s": step.hidden_s,
            "exposed_s": dict(step.exposed_s),
            "exact": forecast.exact,
            "peak_bytes": step.peak_bytes,
            "cached_blocks": forecast.cached_blocks,
            "timeline": step.timeline,
            "timeline_layers": forecast.timeline_layers,
            "days": spent_s / SECONDS_A_DAY,
            "device_hours": metrics.device_hours(spent_s, grid.size),
        }
        if peak_flops is not None:
            rates = [metrics.rate(of, step.time_s) for of in flops]
            told["hfu"], told["mfu"] = (metrics.utilisation(rate, grid.size, peak_flops) for rate in rates)
    return Row(
        place=place,
        grid=str(grid),
        micro_batch=candidate.micro,
        equations_s=candidate.equations_s,
        as_run_s=candidate.as_run_s,
        costs=costs,
        bytes_per_s=bytes_per_s,
        memory=PlannedMemory(
            parts=asdict(needs),
            total=needs.total,
            of_device=metrics.of_device_memory(needs.total, device_memory) if device_memory else None,
        ),
        reduce_dtypes=reduce_dtypes,
        **told,
    )
