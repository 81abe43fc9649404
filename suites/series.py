"""The weak-scaling series of each system, as points to run. The data is in series.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from engine.errors import UsageError
from engine.record import Record, first_problem

FILE = Path(__file__).with_name("series.yaml")
ANY_OTHER = "*"


@dataclass(frozen=True, slots=True)
class Point:
    """One run: so many devices train that model. sequences: of a global batch; micro_batch: of a rank, at once."""

    series: str
    devices: int
    model: str
    sequences: int
    micro_batch: int | None
    precision: str
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.series}-{self.devices}-{self.model}"


class Series(Record):
    """A series as the file has it: per system, devices -> model."""

    name: str
    source: str = Field(min_length=1)
    sequences: int = Field(gt=0)
    micro_batch: int | None = Field(default=None, gt=0)
    precision: Literal["bf16", "fp32", "fp64"]
    tags: tuple[str, ...] = ()
    systems: dict[str, dict[int, str]]


def read(path: Path = FILE) -> list[Series]:
    """Read and check the file. Raises UsageError that names the file and the key."""
    try:
        return TypeAdapter(list[Series]).validate_python(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    except ValidationError as error:
        raise UsageError(f"{path} is not a valid list of series: {first_problem(error)}") from None


def points(system: str) -> list[Point]:
    """What that system runs, series by series, smallest first."""
    return list(_points(read(), system))


def _points(every: list[Series], system: str) -> Iterator[Point]:
    own = any(system in series.systems for series in every)
    for series in every:
        for devices, model in sorted(series.systems.get(system if own else ANY_OTHER, {}).items()):
            yield Point(
                series=series.name,
                devices=devices,
                model=model,
                sequences=series.sequences,
                micro_batch=series.micro_batch,
                precision=series.precision,
                tags=series.tags,
            )
