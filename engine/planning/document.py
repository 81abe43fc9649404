"""This is the schema of a plan, which says what was asked, by which rule grids were ranked, and which are the best."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from engine.data.dataset import Samples
from engine.footprint.memory import RESERVE
from engine.grid import Axis
from engine.models.flops import hardware_flops, model_flops
from engine.planning.origin import Origin
from engine.planning.rank import Candidate, Workload
from engine.result import metrics
from engine.result.grid_text import GridText
from engine.result.step import Timeline
from engine.schema import Document, Record
from engine.training_record import CheckpointEvery

SCHEMA: Literal["par4d.plan"] = "par4d.plan"
VERSION: Literal[1] = 1
SECONDS_A_DAY = 86400


class Cost(Record):
    """The collectives of an equation take these seconds of a step along an axis, by the equations and as run."""

    equation: str
    axis: Axis
    equations_s: float
    as_run_s: float


class PlannedMemory(Record):
    """A rank needs these bytes at the fullest moment of a step. parts: by what they are for (footprint.memory.Needs).
    of_device: share of a device's memory.
    """

    parts: dict[str, float]
    total: float
    of_device: float | None = None


class Row(Record):
    """A row describes one grid. Without a simulation times are absent, without a token budget days and device-hours.

    bytes_per_s: the bandwidth that a group of each axis finds. reduce_dtypes: the formats in which gradients are summed
    along the axes that split rows; older plans lack them. exact: whether all layers were traced and not few.
    schedule: of a pipeline. peak_bytes: the trace's peak memory. timeline: only the fastest grid has one, of a network
    of timeline_layers.
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
    schedule: str | None = None
    peak_bytes: int | None = None
    cached_blocks: int | None = None
    timeline: Timeline | None = None
    timeline_layers: int | None = None
    hfu: float | None = None
    mfu: float | None = None
    days: float | None = None
    device_hours: float | None = None


class GridPlan(Document):
    """A plan states what was asked, and the best grids for it, in bytes and seconds.

    machine: where the machine's numbers come from, if they were used. samples: what sequences are called, such as
    images. asked_sequences: of a batch, before it was rounded to what the devices can share. token_budget: to train on
    in all, if that is known. valid: how many grids divide the network and the batch; fit: how many of
    these fit in memory.
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
    samples: Samples = "sequences"
    asked_sequences: float
    sequences: int
    tokens: int
    precision: str
    checkpoint_activations: bool
    checkpoint_every: CheckpointEvery | None = None
    offload: bool = False
    overlap: str
    token_budget: float | None = None
    placement_aware: bool
    ordered_by: Literal["equations", "as_run", "simulated"]
    valid: int
    fit: int
    rows: tuple[Row, ...]

    @property
    def activations(self) -> str:
        """Say what becomes of activations."""
        if not self.checkpoint_activations:
            return "kept"
        every = self.checkpoint_every
        return "recomputed" if every in (None, 1) else f"recomputed (--checkpoint-every {every})"

    def to_json(self) -> str:
        """Write the text of the file, without what isn't known."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"


def row(
    place: int,
    candidate: Candidate,
    workload: Workload,
    bytes_per_s: dict[Axis, float],
    *,
    token_budget: float | None = None,
    peak_flops: float | None = None,
) -> Row:
    """Make the row of a candidate, with times and utilisations where it has a forecast."""
    training, needs, grid = workload.training, candidate.needs, candidate.grid
    model, sequences, device_memory = training.model, training.batch.sequences, workload.device_memory
    costs = tuple(
        Cost(equation=equation, axis=axis, equations_s=seconds, as_run_s=candidate.as_run[equation, axis])
        for (equation, axis), seconds in candidate.equations.items()
    )
    times: dict[str, Any] = {}
    if forecast := candidate.forecast:
        step = forecast.step
        times = {
            "time_s": step.time_s,
            "interval_s": (step.low_s, step.high_s),
            "compute_s": step.compute_s,
            "hidden_s": step.hidden_s,
            "exposed_s": dict(step.exposed_s),
            "exact": forecast.exact,
            "peak_bytes": step.peak_bytes,
            "schedule": step.schedule,
            "cached_blocks": forecast.cached_blocks,
            "timeline": step.timeline,
            "timeline_layers": forecast.timeline_layers,
        }
        if token_budget is not None:
            spent_s = metrics.time_to_solution(token_budget, metrics.rate(sequences * model.sequence, step.time_s))
            times |= {"days": spent_s / SECONDS_A_DAY, "device_hours": metrics.device_hours(spent_s, grid.size)}
        if peak_flops is not None:
            hardware = hardware_flops(model, sequences, recompute=training.checkpoint_activations)
            for name, flops in (("hfu", hardware), ("mfu", model_flops(model, sequences))):
                times[name] = metrics.utilisation(metrics.rate(flops, step.time_s), grid.size, peak_flops)
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
        reduce_dtypes=training.reduce_dtypes(grid),
        **times,
    )
