"""Schema of a plan: the question, the rule by which grids were ranked, the best of them, and the machine planned on."""

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from engine.data.dataset import Samples
from engine.footprint.memory import RESERVE
from engine.grid import Axis
from engine.models.flops import model_flops
from engine.models.mode_choice import GATHERING
from engine.overlap.flags import ALL
from engine.pipeline.registry import ScheduleChoice
from engine.planning.workload import Candidate, Workload
from engine.result import metrics
from engine.result.provenance import processor, processor_name
from engine.result.schema.step import GridText, Timeline
from engine.schema import Document, Record
from engine.tensor_mode import ALGORITHM_1
from engine.training_record import TrainingOptions

if TYPE_CHECKING:
    from systems import Measured, System


SCHEMA: Literal["par4d.plan"] = "par4d.plan"
VERSION: Literal[2] = 2
SECONDS_A_DAY = 86400


class NumbersOrigin(Record):
    """The numbers of a system come from its file, from what was measured on it, or from both.

    date, device: when and on what it was measured, if it was. calibrated: whether more than its links was measured.
    fitted_to: the measured times behind the four fitted numbers; none where these aren't used. other: the system's own
    device, where another one was measured. by_kind: whether they are what devices of its kind reach elsewhere.
    """

    system: str
    date: str | None = None
    device: str | None = None
    calibrated: bool = False
    fitted_to: tuple[str, ...] = ()
    other: str | None = None
    by_kind: bool = False


def origin(system: "System", measured: "Measured | None", *, simulated: bool) -> NumbersOrigin:
    """Say where a plan's numbers of a system come from. simulated: whether the plan predicts times."""
    own = (measured and measured.performance) or system.performance
    fitted_to = own.fitted_to if own and simulated else ()
    by_kind = bool(own is None and simulated and system.device.reached)
    if measured is None:
        return NumbersOrigin(system=system.name, fitted_to=fitted_to, by_kind=by_kind)
    return NumbersOrigin(
        system=system.name,
        date=measured.date,
        device=measured.source.device,
        calibrated=measured.performance is not None,
        fitted_to=fitted_to,
        other=_other(system, measured.source.device, measured.source.processor),
        by_kind=by_kind,
    )


def describe(of: NumbersOrigin) -> str:
    """Write a sentence or two for a person."""
    command = f"par4d calibrate --system {of.system}"
    if of.device is not None and (of.calibrated or not of.fitted_to):
        what, are = ("calibration", "is") if of.calibrated else ("links", "are")
        if of.other is not None:
            return (
                f"The {what} of {of.date} {are} another machine's: {of.device}, not {of.other}; {command} mends that."
            )
        return f"{what.capitalize()} measured on {of.date}: {of.device}."
    if of.fitted_to:
        unused = f" The links measured on {of.date} count in it after {command}." if of.date else ""
        return f"The machine's numbers are fitted to published times of {' and '.join(of.fitted_to)}.{unused}"
    if of.by_kind:
        return (
            f"Nobody has calibrated {of.system}: times go by what trainings of GPTs reached elsewhere on such devices "
            f"(systems/devices); {command} measures it."
        )
    return f"Nobody has calibrated {of.system}: {command} does, and times are closer then."


def _other(system: "System", device: str, known: str | None) -> str | None:
    """Name what the system has instead of the measured device; None where the measured one may be its own."""
    from systems import device_called  # loads pydantic

    if system.device.kind == "cuda":
        found = device_called(device)
        return None if found is not None and found.name == system.device.name else system.device.name
    same = processor() == known if known else processor_name() == device
    return None if same or not system.may_be_here() else f"this one, {processor() if known else processor_name()}"


class Cost(Record):
    """Seconds of a step in the collectives of an equation along an axis, by the equations and as run."""

    equation: str
    axis: Axis
    equations_s: float
    as_run_s: float


class PlannedMemory(Record):
    """Bytes that a rank needs at the fullest moment of a step."""

    parts: dict[str, float]
    """by what they are for (footprint.memory.Needs)"""
    total: float
    of_device: float | None = None
    """share of a device's memory"""


class Row(Record):
    """One grid. Without a simulation times are absent, without a token budget days and device-hours."""

    place: int = Field(ge=1)
    grid: GridText
    micro_batch: int = Field(ge=1)
    equations_s: float
    as_run_s: float
    costs: tuple[Cost, ...]
    bytes_per_s: dict[Axis, float]
    """bandwidth that a group of each axis finds"""
    memory: PlannedMemory
    reduce_dtypes: dict[Axis, str] = {}
    """formats in which gradients are summed along the axes that split rows; older plans lack them"""
    time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    compute_s: float | None = None
    hidden_s: float | None = None
    exposed_s: dict[Axis, float] | None = None
    exact: bool = False
    """whether all layers were traced and not few"""
    schedule: str | None = None
    """of a pipeline"""
    tensor_mode: str = ALGORITHM_1.name
    """older plans lack it"""
    recomputed_blocks: int | None = None
    """blocks, the first ones, that are recomputed, where the plan chose how many"""
    peak_bytes: int | None = None
    """peak memory of the trace"""
    cached_blocks: int | None = None
    timeline: Timeline | None = None
    """of the fastest grid alone"""
    timeline_layers: int | None = None
    hfu: float | None = None
    mfu: float | None = None
    days: float | None = None
    device_hours: float | None = None


class GridPlan(Document):
    """Question, and the best grids for it, in bytes and seconds."""

    schema_: Literal["par4d.plan"] = Field(default=SCHEMA, alias="schema")
    version: Literal[2] = VERSION
    system: str
    machine: NumbersOrigin | None = None
    """where the machine's numbers come from, if they were used"""
    devices_per_node: int
    device_memory_bytes: float | None = None
    reserve: float = RESERVE
    model: str
    parameters: int
    devices: int
    samples: Samples = "sequences"
    """what sequences are called, such as images"""
    asked_sequences: float
    """of a batch, before it was rounded to what the devices can share"""
    sequences: int
    tokens: int
    training: TrainingOptions
    recomputes_least: bool = False
    """whether each grid recomputes no more blocks than memory asks for"""
    overlap: str
    token_budget: float | None = None
    """tokens to train on in all, if that is known"""
    placement_aware: bool
    ordered_by: Literal["equations", "as_run", "simulated"]
    """as_run: by what a run communicates, in older plans"""
    valid: int
    """number of grids that divide the network and the batch"""
    fit: int
    """number of these that fit in memory"""
    rows: tuple[Row, ...]

    @model_validator(mode="before")
    @classmethod
    def _read_older(cls, data: Any) -> Any:
        """Read plans of version 1, whose options of training stand beside the others."""
        if not isinstance(data, dict) or data.get("version") != 1:
            return data
        names = {option.name for option in fields(TrainingOptions)}
        options = {name: value for name, value in data.items() if name in names and value is not None}
        others = {name: value for name, value in data.items() if name not in names}
        return others | {"training": options, "version": VERSION}

    @property
    def precision(self) -> str:
        """Number format of the computation."""
        return self.training.precision

    @property
    def activations(self) -> str:
        """Treatment of activations, in words."""
        together, first = self.training.recomputed_together, self.training.checkpoint_blocks
        if together == 0:
            return "kept"
        what = "recomputed where memory asks" if self.recomputes_least else "recomputed"
        if first is not None:
            what += f" in {first} blocks"
        return what if together == 1 else f"{what} (--checkpoint-every {together})"

    def words(self, row: Row) -> list[str]:
        """Return the options of a training on a grid as it is planned, but for the pace of its overlap."""
        again = self.training.gather_inputs_again and row.tensor_mode in GATHERING
        options = replace(self.training, tensor_mode=row.tensor_mode, gather_inputs_again=again)  # type: ignore[arg-type]
        if row.recomputed_blocks is not None:
            options = replace(
                options.recomputing(int(row.recomputed_blocks > 0)), checkpoint_blocks=row.recomputed_blocks or None
            )
        schedule = ScheduleChoice.parse(row.schedule).words if row.schedule else ()
        overlap = [] if self.overlap == str(ALL) else ["--overlap", self.overlap]
        return ["--grid", row.grid, "--micro-batch", str(row.micro_batch), *schedule, *options.words(), *overlap]

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
    training, needs, grid = candidate.training, candidate.needs, candidate.grid
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
            for name, flops in (("hfu", training.flops), ("mfu", model_flops(model, sequences))):
                times[name] = metrics.utilisation(metrics.rate(flops, step.time_s), grid.size, peak_flops)
    return Row(
        place=place,
        grid=str(grid),
        micro_batch=candidate.micro,
        tensor_mode=training.mode(grid).name,
        recomputed_blocks=training.recomputed_blocks if workload.recomputes_least else None,
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
