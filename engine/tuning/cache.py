"""Times kept for the next job: a file for each device with its libraries. No torch.

Devices that call themselves alike share a file, in which each has a table of its own, known by how fast it multiplies.
A file that can't be read, or is of another device, is as good as none.
"""

import hashlib
import json
import logging
from math import inf
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from engine.files import cache_folder, locked, write_text
from engine.result.schema.tuning import TunedShape
from engine.schema import Document, Record, first_problem

log = logging.getLogger(__name__)

LOCK_S = 5.0
ALIKE = 1.25
"""Two measured rates are one machine's up to this factor. Look-alikes were seen to differ by 2.8, and classes on a
fixed grid instead would lose a machine near an edge to its noise."""


class Table(Record):
    """Times of one machine."""

    machine: dict[str, str]
    """All but the shapes that times depend on, as the machine states it."""
    flops_per_s: float = Field(gt=0)
    """Rate of a short product when the table was begun."""
    shapes: tuple[TunedShape, ...] = ()

    def off(self, other: "Table") -> float:
        """Return the factor between both rates, at least 1; infinite if the machines state other things."""
        if self.machine != other.machine:
            return inf
        return max(self.flops_per_s, other.flops_per_s) / min(self.flops_per_s, other.flops_per_s)


class Tables(Document):
    """File of tables. Before version 3 oneDNN wasn't tried; before 2 it was one table, without a rate."""

    schema_: Literal["par4d.matmul"] = Field(default="par4d.matmul", alias="schema")
    version: Literal[3] = 3
    tables: tuple[Table, ...] = ()

    def of(self, like: Table) -> Table | None:
        """Find the table of the same machine."""
        nearest = min(self.tables, key=like.off, default=None)
        return nearest if nearest is not None and like.off(nearest) <= ALIKE else None


def cache_file(machine: dict[str, str]) -> Path | None:
    """Return the file with the tables of such machines; None where nothing can be kept."""
    name = hashlib.blake2b(json.dumps(machine, sort_keys=True).encode(), digest_size=8).hexdigest()
    folder = cache_folder()
    return None if folder is None else folder / "matmul" / f"{name}.json"


def load(file: Path | None, new: Table) -> Table:
    """Load the table of the new one's machine, or else take the new one; a warning says what is lost."""
    if file is None:
        log.warning("No home folder to keep tuned products in: set XDG_CACHE_HOME, or the next job tunes again.")
        return new
    kept, problem = _read(file, new.machine)
    if problem:
        log.warning("The table of tuned products %s is made anew: %s", file, problem)
    return kept.of(new) or new


def save(file: Path | None, table: Table, timed: TunedShape) -> Table:
    """Return the table with this shape in place of the same one, written beside what other jobs have kept meanwhile."""
    if file is None:
        return table
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.parent, LOCK_S):
            kept, _ = _read(file, table.machine)
            old = kept.of(table)
            table = old or table
            shapes = tuple(shape for shape in table.shapes if key(shape) != key(timed))
            table = table.model_copy(update={"shapes": (*shapes, timed)})
            others = tuple(other for other in kept.tables if other is not old)
            write_text(file, Tables(tables=(*others, table)).to_json())
    except OSError as error:
        log.warning("The table of tuned products can't be kept, so the next job tunes again: %s", error)
    return table


def _read(file: Path, machine: dict[str, str]) -> tuple[Tables, str | None]:
    """Read the file; the second is why there is nothing in it if there should be something."""
    try:
        found = Tables.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return Tables(), None
    except ValidationError as error:
        return Tables(), first_problem(error)
    except OSError as error:
        return Tables(), str(error)
    if any(table.machine != machine for table in found.tables):
        return Tables(), "it is of another device or of other libraries"
    return found, None


def key(shape: TunedShape) -> tuple[object, ...]:
    """Return the fields by which a shape is found again."""
    size = shape.m, shape.n, shape.k, shape.dtype
    return *size, shape.forwards, shape.movable, shape.bias, shape.accumulates, shape.widened
