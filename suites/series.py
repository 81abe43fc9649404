"""What each study runs on each system, as points. The data is in series.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from engine.errors import UsageError
from engine.schema import Record, first_problem

FILE = Path(__file__).with_name("series.yaml")
ANY_OTHER = "*"
AUTO: Literal["auto"] = "auto"

Count = Annotated[int, Field(gt=0)]


class Series(Record):
    """A series as the file has it: per system, devices -> model, or models.

    sequences: of a global batch, the same at every size unless it says devices -> sequences. micro_batch: of a rank, at
    once. grids: each point is run on each; "auto" is the engine's choice. cache: blocks whose gathered weights a study
    of overlap keeps. rounds: in which what is compared takes turns. ranks_per_node: at most. time_limit: of a job,
    where the partition's doesn't do. token_budget: tokens of the training whose time to solution is asked for.
    """

    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    sequences: Count | dict[int, Count]
    micro_batch: Count | None = None
    precision: Literal["bf16", "fp32", "fp64"]
    grids: tuple[str, ...] = Field(default=(AUTO,), min_length=1)
    cache: Count | Literal["auto"] = AUTO
    rounds: Count = 10
    ranks_per_node: Count | None = None
    iterations: Count = 10
    time_limit: str | None = Field(default=None, pattern=r"^(\d+h)?(\d+m)?$", min_length=2)
    token_budget: float | None = Field(default=None, gt=0)
    tags: tuple[str, ...] = ()
    systems: dict[str, dict[Count, str | tuple[str, ...]]]

    @model_validator(mode="after")
    def _every_size_has_a_batch(self) -> Self:
        sizes = {devices for models in self.systems.values() for devices in models}
        if isinstance(self.sequences, dict) and (missing := sizes - set(self.sequences)):
            raise ValueError(f"sequences are given for {sorted(self.sequences)} devices, but not for {min(missing)}")
        return self


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement of a series: so many devices train that model. sequences: of a global batch."""

    series: Series
    devices: int
    model: str
    sequences: int
    grid: str

    def __str__(self) -> str:
        name = f"{self.series.name}-{self.devices}-{self.model}"
        return name if self.grid == AUTO else f"{name}-{self.grid}"


def read(path: Path = FILE) -> dict[str, list[Series]]:
    """Read and check the file: study -> its series. Raises UsageError that names the file and the key."""
    try:
        return TypeAdapter(dict[str, list[Series]]).validate_python(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        raise UsageError(f"{path} is not a valid list of series: {first_problem(error)}") from None


def points(study: str, system: str) -> list[Point]:
    """What that study runs on that system, series by series, smallest first."""
    return list(_points(read()[study], system))


def _points(every: list[Series], system: str) -> Iterator[Point]:
    own = any(system in series.systems for series in every)
    for series in every:
        for devices, named in sorted(series.systems.get(system if own else ANY_OTHER, {}).items()):
            sequences = series.sequences if isinstance(series.sequences, int) else series.sequences[devices]
            for model in (named,) if isinstance(named, str) else named:
                for grid in series.grids:
                    yield Point(series=series, devices=devices, model=model, sequences=sequences, grid=grid)
