"""Published numbers: what papers and trainers print, with place, system, unit and tolerance; they stand nowhere else.

A file a paper or trainer, named as code and pages name it. A file lists blocks, a table, figure or section each: what
all of its rows share, `metrics` with the unit of each metric (or with more fields, `{unit: s, origin: implied}`), and
`rows`, which have fields of their own and a number of each metric, or a range as `[low, high]`. To add a number is to
write a row; to add a paper, a file.

Readers take numbers by select(): reports by `study`, the suite of that name; suites/base/figures.py what a run has to
reach; engine/validation what the model is judged by; claims/ what a figure says by them. Without torch.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from engine import yaml_text
from engine.errors import UsageError
from engine.schema import Record, first_problem

FOLDER = Path(__file__).parent
DAY = 86400.0
UNITS = {
    **{"": 1.0, "x": 1.0, "%": 0.01, "million": 1e6, "billion": 1e9},
    **{"tokens": 1.0, "million tokens": 1e6, "billion tokens": 1e9, "tokens/s": 1.0, "images/s": 1.0},
    **{"Pflop/s": 1e15, "Tflop/s": 1e12, "bytes": 1.0, "GB": 1e9, "GB/s": 1e9},
    **{"s": 1.0, "days": DAY, "months": 365.25 / 12 * DAY, "years": 365.25 * DAY},
}
"""What one of each unit is in SI units or as a fraction. A month is a twelfth of 365.25 days."""
TOLERANCE = 0.2
"""Tolerance of what was measured, where none is given."""
PLACE = r"^(Table|Fig\.|section) \w[-\w.]*$|^abstract$"
"""Pattern of tables, figures and sections."""
OF_THE_NUMBER = frozenset({"where", "origin", "value", "highest", "bound", "unit", "tolerance", "note"})
"""Fields that say nothing of what the number is of."""


def machine_name(system: str) -> str:
    """Return the name that the file of a system in systems/ has, or would have."""
    return system.lower().replace(" ", "-")


class Number(Record):
    """Number of a paper."""

    paper: str
    """Name of the file."""
    where: str = Field(pattern=PLACE)
    """Table, figure or section."""
    origin: Literal["printed", "implied", "picture"] = "printed"
    """Whether the paper prints the number, printed ones imply it, or it was read off a picture."""
    metric: str
    value: float = Field(gt=-inf, lt=inf)
    highest: float | None = Field(default=None, gt=-inf, lt=inf)
    """End of a printed range that begins at the value."""
    bound: Literal["", "at least", "at most"] = ""
    unit: str
    tolerance: float = Field(default=TOLERANCE, ge=0, lt=1)
    """Part of the value by which a run of a suite may be worse; a verdict on a claim goes by claims/tolerance.py."""
    study: str = ""
    """Suite that measures the number here."""
    system: str = ""
    framework: str = ""
    model: str = ""
    devices: int | str | None = None
    """Devices of the job, or their range in words."""
    device: str = ""
    dtype: str = ""
    sums: str = ""
    """Number format in which gradients are summed over ranks."""
    batch_tokens: int | None = None
    sequence: int | None = None
    tokens: float | None = None
    """Length of the whole training."""
    micro_batch: int | None = None
    """Sequences that a rank takes at once."""
    recomputed: Literal["", "none", "selective", "all"] = ""
    """Activations that the backward computes again; "" where nothing is told."""
    compiled: bool = False
    """Whether torch.compile made the kernels."""
    lacking: str = ""
    """Parts of the run that the engine doesn't have."""
    overlap: str = ""
    """Overlap that the run hides, as the engine writes it."""
    gained: str = ""
    """Source of a gain; for overlaps flags as the engine writes them, the cache without its size."""
    over: str = ""
    """Base that a gain is over."""
    what: str = ""
    """Thing the number is of, where the fields above don't tell."""
    note: str = ""

    @field_validator("unit")
    @classmethod
    def _known(cls, unit: str) -> str:
        if unit not in UNITS:
            raise ValueError(f"none of {', '.join(filter(None, UNITS))}")
        return unit

    @property
    def source(self) -> str:
        """Paper and place, as pages name them."""
        return f"{self.paper} {self.where}" + ("" if self.origin == "printed" else f", {self.origin}")

    @property
    def si(self) -> float:
        """Value in SI units; a percentage as a fraction."""
        return self.value * UNITS[self.unit]

    @property
    def highest_si(self) -> float | None:
        """End of the range in the units of `si`."""
        return None if self.highest is None else self.highest * UNITS[self.unit]

    @property
    def text(self) -> str:
        """Value as printed, with its unit."""
        if self.unit == "x" and self.highest is None:
            return f"{self.value:g}x" + (" as fast" if self.metric == "speed_up" else "")
        end = "" if self.highest is None else f" to {self.highest:g}"
        return f"{self.value:g}{end} {self.unit}".rstrip()


@cache
def numbers(folder: Path = FOLDER) -> tuple[Number, ...]:
    """Read all numbers, in the order of the files' names. Raises UsageError for a file that has something else, or two
    numbers for one bar of a study.
    """
    found = tuple(number for path in sorted(folder.glob("*.yaml")) for number in _read(path))
    known: dict[tuple[object, ...], Number] = {}
    for one in found:
        point = tuple(value for name, value in one if name not in OF_THE_NUMBER)
        if one.study and (other := known.setdefault(point, one)) is not one:
            raise UsageError(
                f"{one.paper}.yaml has {one.metric} of the same {one.study.replace('_', ' ')} twice, {other.text} "
                f"({other.where}) and {one.text} ({one.where}): leave out the one that isn't printed."
            )
    return found


def select(**fields: object) -> list[Number]:
    """List the numbers that have these fields."""
    if unknown := set(fields) - set(Number.model_fields):
        raise ValueError(f"Published numbers have no field {', '.join(sorted(unknown))}.")
    return [one for one in numbers() if all(getattr(one, name) == value for name, value in fields.items())]


def _read(path: Path) -> Iterator[Number]:
    try:
        for block in yaml_text.read(path):
            shared = {name: value for name, value in block.items() if name not in ("metrics", "rows")}
            for row in block["rows"]:
                yield from _of_row(path.stem, block["metrics"], shared | row)
    except ValidationError as error:
        raise UsageError(f"{path} has no valid number: {first_problem(error)}") from None
    except (TypeError, AttributeError, KeyError) as error:
        raise UsageError(f"{path} is no list of blocks with metrics and rows: {error}.") from None


def _of_row(paper: str, metrics: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Number]:
    """Make a number of each metric that the row has, one at least."""
    fields = {name: value for name, value in row.items() if name not in metrics}
    if not (given := [metric for metric in metrics if metric in row]):
        raise KeyError(f"a row without any of {', '.join(metrics)}")
    for metric in given:
        value, highest = row[metric] if isinstance(row[metric], list) else (row[metric], None)
        own = metrics[metric] if isinstance(metrics[metric], dict) else {"unit": metrics[metric]}
        yield Number(paper=paper, metric=metric, value=value, highest=highest, **fields, **own)
