"""Schema of a contest: sides that took turns in one job, round by round, each compared with one of them, the base."""

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.result.gate import NOTHING_KNOWN, Interval
from engine.result.metrics import Paired
from engine.result.schema.step import Breakdown, Collective, GridText, MachineUsage, Timeline
from engine.schema import Record


class Ratio(Record):
    """Paired ratio of times with its interval of confidence 0.95 (metrics.paired): over jobs, or over the rounds of the
    only one. Results of earlier versions have one that was bootstrapped over jobs and rounds, too narrow of few jobs.
    """

    ratio: float
    low: float | None = None
    """None, like high, where nothing is known of the interval."""
    high: float | None = None

    @classmethod
    def of(cls, paired: Paired) -> "Ratio":
        """Make the ratio as JSON can hold it, which has no infinity."""
        low, high = (None, None) if paired.interval == NOTHING_KNOWN else paired.interval
        return cls(ratio=paired.ratio, low=low, high=high)

    @property
    def interval(self) -> Interval:
        return NOTHING_KNOWN if self.low is None or self.high is None else Interval(self.low, self.high)

    def __str__(self) -> str:
        """Write it for a person: 0.871 (0.862 to 0.880)."""
        span = "interval not known" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.ratio:.3f} ({span})"


PlayedTask = tuple[str, float, float]
"""A task's letter and micro-batch, such as F3, B0 and W12, of a second chunk F3.1; its start and end in seconds."""


class ContestSide(Record):
    """One side of a contest."""

    name: str
    rounds_s: tuple[tuple[float, ...], ...]
    """Seconds of each counted step, by round."""
    over_base: Ratio | None = None
    """Its time by that of the base, paired by round; absent for the base itself."""


class TrainingSide(ContestSide):
    """Training that took turns with others of the same engine."""

    time_per_iteration_s: float


class OverlapSide(TrainingSide):
    """Overlap flags, compared with none."""

    kind: Literal["overlap"] = "overlap"
    share_of_greatest_gain: float | None = None
    """None for no overlap."""
    prefetch_bytes: int = 0
    """As in schema.Memory, like the next two."""
    cached_blocks: int = 0
    cache_bytes: int = 0
    collectives: tuple[Collective, ...] = ()
    breakdown: Breakdown | None = None
    timeline: Timeline | None = None


class StageTimes(Record):
    """One stage under one schedule, as the mean of its counted steps."""

    idle_share: float
    """Part of a step in which the stage waits for other stages, at the step's end included."""
    simulated_idle_share: float
    """The same in a simulation in which each task takes its mean time on its stage, and a message none."""
    task_s: dict[str, float]
    """Mean time of a task, by direction."""
    most_held: int
    """Most passes whose backward was still to come."""
    most_pending: int
    """Most passes whose weight task was still to come."""
    tasks: tuple[PlayedTask, ...] = ()
    """Tasks of the step with the median time, from its start, which is that of all stages; absent unless asked for."""
    idle_s: tuple[tuple[float, ...], ...] = ()
    """Seconds of each counted step, by round, of waiting for other stages; absent in older results, like work_s."""
    work_s: tuple[tuple[float, ...], ...] = ()
    """Seconds of each counted step, by round, of carrying out tasks."""


class ScheduleSide(TrainingSide):
    """Schedule of a pipeline, compared with 1F1B."""

    kind: Literal["schedule"] = "schedule"
    auto: bool = False
    """Whether --schedule auto takes it."""
    idle_share: float
    """Mean over stages, like simulated_idle_share."""
    simulated_idle_share: float
    simulated_s: float
    """Seconds of a simulated step, in which all that isn't a task takes as long as was measured."""
    stages: tuple[StageTimes, ...]
    drawn_s: float | None = None
    """Seconds of the step whose tasks the stages have."""
    peak_bytes: int | None = None
    """The most that was allocated on any rank's device during its turns; absent on processors, where nothing tells."""
    machine: MachineUsage | None = None
    """Usage of a machine by its ranks, where they compute on processors."""

    @property
    def label(self) -> str:
        """Name for a person."""
        return f"{self.name} (auto)" if self.auto else self.name


class GridSide(TrainingSide):
    """Grid with its micro-batch and, with stages, its schedule, compared with the first one."""

    kind: Literal["grid"] = "grid"
    grid: GridText
    micro_batch: int
    """Sequences that a rank takes at once."""
    schedule: str | None = None
    """Schedule of a grid with stages."""
    tensor_mode: str = "4d"
    """Tensor mode; absent of results from before there were several."""
    exposed_s: dict[str, float]
    """Seconds that a rank waits in a step, by axis, the mean of all ranks."""
    predicted_s: float | None = None
    """Predicted seconds of a step, where the plan chose the grids."""


class OptimisationSide(TrainingSide):
    """Training with one optimisation more than the side before it, compared with the baseline (axonn-sc24 Fig. 7)."""

    kind: Literal["optimisation"] = "optimisation"
    over_former: Ratio | None = None
    """Its time by that of the side before it, paired by round; absent for the first."""
    grid: GridText
    micro_batch: int
    """Sequences that a rank takes at once."""
    tuned: bool
    """Whether matrix products were tuned."""
    overlap: str
    breakdown: Breakdown | None = None


class Contest(Record):
    """Sides of one kind that took turns in the same processes."""

    base: str
    """Name of the side that the others are compared with."""
    sides: tuple[Annotated[OverlapSide | ScheduleSide | GridSide | OptimisationSide, Field(discriminator="kind")], ...]


_LISTS = (("variants", "overlap", "over_none"), ("schedules", "schedule", "over_1f1b"), ("grids", "grid", "over_first"))
"""Key of the sides of a kind up to version 5, the kind, and the key of a side's ratio."""


def migrated(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result of version 1 to 5, where each kind had a list of its own, with its contest as in version 6."""
    result = dict(data)
    for key, kind, ratio in _LISTS:
        sides = result.pop(key, None)
        if isinstance(sides, list) and sides:
            listed = [_migrated_side(side, kind, ratio) for side in sides]
            base = {"overlap": "none", "schedule": "1f1b"}.get(kind, listed[0].get("name"))
            result["contest"] = {"base": base, "sides": listed}
    return result


def _migrated_side(side: object, kind: str, ratio: str) -> dict[str, Any]:
    """Return a side under today's keys; the schema's error names those that aren't there."""
    own = dict(side) if isinstance(side, dict) else {}
    words = [own.get(key) for key in ("grid", "micro_batch", "schedule")]
    name = ",".join(str(word) for word in words if word is not None) if kind == "grid" else own.pop(kind, None)
    return {"kind": kind, "name": name, "over_base": own.pop(ratio, None), **own}
