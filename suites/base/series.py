"""Series of studies and their points on each system (suites/series.yaml)."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from engine import yaml_text
from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import Overlap
from engine.pipeline.registry import ScheduleName
from engine.planning.grids import SearchSpace
from engine.planning.rank import Workload
from engine.schema import Record, first_problem
from engine.training_record import OptimConfig, PrecisionName, Training, TrainingOptions
from systems import TimeLimit, load

FILE = Path(__file__).parents[1] / "series.yaml"
ANY_OTHER = "*"
AUTO: Literal["auto"] = "auto"
CALIBRATION = "calibration"
"""A machine's numbers are fitted to this study; all tests that par4d calibrate runs have the tag."""
EVERY: Literal["every"] = "every"
EACH_BLOCK = TrainingOptions(checkpoint_activations=True)
"""Where a series doesn't say otherwise activations are recomputed, as in published runs."""

Count = Annotated[int, Field(gt=0)]
Grids = Annotated[tuple[str, ...], Field(min_length=1)]


def _models(named: str | tuple[str, ...]) -> tuple[str, ...]:
    return (named,) if isinstance(named, str) else named


class RanksOfPeer(Record):
    """Layout of a peer's ranks that a series names."""

    tensor: Count = 1
    pipeline: Count = 1
    data: Count = 1
    micro_batch: Count | None = None
    """sequences that a rank takes at once; the most that fit unless given"""


class Series(Record):
    """Series as the file has it. Keys of TrainingOptions stand beside its own."""

    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    sequences: Count | dict[int | str, Count]
    """of a global batch, at every size or as devices, or model -> sequences"""
    micro_batch: Count | dict[int | str, Count] | None = None
    """sequences that a rank takes at once; given as sequences is"""
    known_to_fit: bool = False
    """whether each side of a contest takes that number, which has run on such devices: no estimate of memory changes it
    or refuses the contest
    """
    training: TrainingOptions
    """blocks are recomputed, one by one, unless the series says how"""
    grids: Grids | dict[str | Count, Grids] | Literal["every"] = (AUTO,)
    """on each of which a point runs, or model -> grids and devices -> grids; "auto", which others get, is the engine's
    choice; "every" is all that a plan finds, with activations recomputed and its micro-batches"""
    candidates: tuple[str, ...] = ()
    """grids that take turns in one job, as bench grids reads them; without any, those that a plan finds the fastest"""
    schedules: Annotated[tuple[ScheduleName, ...], Field(min_length=1)] = (AUTO,)
    """with each of which a grid with stages runs"""
    optim: OptimConfig = OptimConfig()
    """as the paper has it, where it says so"""
    overlap: str = ""
    """overlap of a training, as the engine writes it; all unless given"""
    also_overlap: str = ""
    """overlap with which a job of scaling trains once more behind; figures tell the gain"""
    tune_matmul: bool = False
    """whether each layer's products take the fastest of their modes"""
    cache: Count | Literal["auto"] = AUTO
    """blocks whose gathered weights a study of overlap keeps"""
    rounds: Count = 10
    steps_per_round: Count = 2
    """of each side of a contest with peers"""
    repeats: Count = 3
    """jobs of each point that a verdict takes, by --repeat; lists say what all of them cost"""
    jobs: Count = 4
    """of a contest on one device; each side comes first in half of them"""
    sequence: Count | None = None
    """tokens of one, where the model's own aren't taken"""
    ranks_per_node: Count | None = None
    """the most that a node gets"""
    iterations: Count = 10
    """steps of a training"""
    evaluations: Annotated[int, Field(ge=0)] = 0
    """times in those steps that data which isn't trained on is evaluated, as often as there are epochs"""
    warmup: Annotated[int, Field(ge=0)] = 2
    """first steps, which don't count; of a contest, each time that a side is built, and 3 unless given"""
    time_limit: TimeLimit | dict[int | str, TimeLimit] | None = None
    """of a job; given as sequences is"""
    token_budget: float | None = Field(default=None, gt=0)
    """tokens of the training whose time to solution is asked for"""
    peers: tuple[str, ...] = ()
    """those that a study of baselines takes, by default all"""
    layouts: dict[str, dict[Count, RanksOfPeer]] = {}
    """of peers, as peer -> devices -> ranks; others take the ones that their users would (engine/peers)"""
    peer_micro_batches: tuple[Count, ...] = ()
    """with each of which pipelines of peers are measured, by default the largest of little idle time"""
    breakdown: bool = False
    """whether a contest of baselines parts a step of each side as well, by a profile behind its rounds"""
    tags: tuple[str, ...] = ()
    systems: dict[str, dict[Count, str | tuple[str, ...]]]
    """devices -> model, or models, for each system"""

    @model_validator(mode="before")
    @classmethod
    def _take_options(cls, data: Any) -> Any:
        """Take the options of training from among the keys."""
        if not isinstance(data, dict):
            return data
        if "precision" not in data:
            raise ValueError("precision is missing")
        names = [option.name for option in fields(TrainingOptions)]
        given = {name: data[name] for name in names if name in data}
        others = {key: value for key, value in data.items() if key not in names}
        return others | {"training": asdict(EACH_BLOCK) | given}

    @property
    def precision(self) -> PrecisionName:
        """Number format of the computation."""
        return self.training.precision

    @model_validator(mode="after")
    def _what_is_given_by_size_or_model_covers_each(self) -> Self:
        sizes = {devices for models in self.systems.values() for devices in models}
        self._check_given()
        self._check_layouts(sizes)
        if self.warmup >= self.iterations:
            raise ValueError(f"of {self.iterations} iterations none counts after a warm-up of {self.warmup}")
        for overlap in filter(None, (self.overlap, self.also_overlap)):
            try:
                Overlap.parse(overlap)
            except UsageError as error:
                raise ValueError(str(error)) from None
        if self.evaluations and self.iterations % self.evaluations:
            raise ValueError(
                f"{self.iterations} iterations can't be cut into {self.evaluations} equal parts to evaluate"
            )
        together = self.training.recomputed_together
        if together != AUTO and together < 0:
            raise ValueError(f"the blocks that are recomputed together are 0 or more, not {together}")
        known = {model for models in self.systems.values() for named in models.values() for model in _models(named)}
        if isinstance(self.grids, dict) and (unknown := set(self.grids) - known - sizes):
            raise ValueError(f"grids are given for {min(unknown, key=str)}, which the series doesn't run")
        return self

    def _check_given(self) -> None:
        """Raise ValueError for a point without its batch, micro-batch or limit, or a model that the series hasn't."""
        sizes = [size for of in self.systems.values() for size in of.items()]
        runs = [(devices, model) for devices, named in sizes for model in _models(named)]
        if self.known_to_fit and self.micro_batch is None:
            raise ValueError("known_to_fit is about a micro_batch, which is missing")
        by_size = {"sequences": self.sequences, "micro-batches": self.micro_batch, "time limits": self.time_limit}
        for name, given in by_size.items():
            if not isinstance(given, dict):
                continue
            if missing := [devices for devices, model in runs if model not in given and devices not in given]:
                known = sorted(given, key=str)
                raise ValueError(f"{name} are given for {known} devices, but not for {min(missing)}")
            if unknown := {key for key in given if isinstance(key, str)} - {model for _, model in runs}:
                raise ValueError(f"{name} are given for {min(unknown)}, which the series doesn't run")

    def _check_layouts(self, sizes: set[int]) -> None:
        """Raise ValueError for a layout of a peer or a size that the series hasn't, or of another number of ranks."""
        for peer, layouts in self.layouts.items():
            if peer not in self.peers:
                raise ValueError(f"layouts are given for {peer}, which isn't among the series' peers")
            if unknown := set(layouts) - sizes:
                raise ValueError(f"a layout is given for {min(unknown)} devices, which the series doesn't run")
            for devices, ranks in layouts.items():
                if (size := ranks.tensor * ranks.pipeline * ranks.data) != devices:
                    raise ValueError(f"the layout of {peer} for {devices} devices has {size} ranks")


@dataclass(frozen=True, slots=True)
class Point:
    """Measurement of a series: devices that train a model."""

    series: Series
    devices: int
    model: str
    sequences: int
    micro_batch: int | None
    grid: str
    schedule: ScheduleName = AUTO

    @property
    def time_limit(self) -> str | None:
        """Time limit of its job; None for that of the partition."""
        return _on(self.series.time_limit, self.devices, self.model)

    def __str__(self) -> str:
        given = (part for part in (self.grid, self.schedule) if part != AUTO)
        return "-".join((self.series.name, str(self.devices), self.model, *given))


@cache
def read(path: Path = FILE) -> dict[str, list[Series]]:
    """Read and check the file; returns the series by study. Raises UsageError that names the file and the key."""
    try:
        return TypeAdapter(dict[str, list[Series]]).validate_python(yaml_text.read(path))
    except ValidationError as error:
        raise UsageError(f"{path} is not a valid list of series: {first_problem(error)}") from None


def points(study: str, system: str) -> list[Point]:
    """Return the points that a study runs on a system, series by series, smallest first."""
    return list(_points(read()[study], system))


def _points(every: list[Series], system: str) -> Iterator[Point]:
    own = any(system in series.systems for series in every)
    for series in every:
        for devices, named in sorted(series.systems.get(system if own else ANY_OTHER, {}).items()):
            for model in _models(named):
                sequences, micro_batch = _on(series.sequences, devices, model), _on(series.micro_batch, devices, model)
                point = Point(series, devices, model, sequences, micro_batch, AUTO)
                for grid, micro in _grids(point, system):
                    schedules = series.schedules if grid != AUTO and Grid.parse(grid).stages > 1 else (AUTO,)
                    for schedule in schedules:
                        yield replace(point, grid=grid, micro_batch=micro, schedule=schedule)


def _grids(point: Point, system: str) -> Iterator[tuple[str, int | None]]:
    """Give the grids of a point whose grid is open, with what a rank takes at once."""
    given, micro_batch = point.series.grids, point.micro_batch
    if given != EVERY:
        by_name_or_size: Mapping[str | int, Grids] = given if isinstance(given, dict) else {point.model: given}
        grids = by_name_or_size.get(point.model) or by_name_or_size.get(point.devices, (AUTO,))
        yield from ((grid, micro_batch) for grid in grids)
        return
    network, memory = lookup(point.model), load(system).device.memory_bytes
    batch = Batch(point.sequences, micro_batch)
    options = replace(EACH_BLOCK, precision=point.series.precision)
    training = Training.of(options, network, batch)
    workload = Workload(training, memory.value if memory else None)
    space = SearchSpace(network, point.sequences, exact=True, micro=micro_batch)
    for grid in space.grids(point.devices, point.sequences):
        micro = workload.choose_micro(grid)
        if workload.needs(grid, micro).total <= workload.usable:
            yield str(grid), micro


Given = TypeVar("Given")


def _on(given: Given | Mapping[int | str, Given], devices: int, model: str) -> Given:
    """Return the value for a model, or for so many devices."""
    if isinstance(given, Mapping):
        return given[model] if model in given else given[devices]
    return given
