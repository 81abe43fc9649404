"""What was timed before, kept for the next job: a file for each device with its libraries. No torch.

A file that can't be read, or is of another device, is as good as none.
"""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from engine.files import locked, write_text
from engine.result.matmul import TunedShape
from engine.schema import Record, first_problem

log = logging.getLogger(__name__)

LOCK_S = 5.0


class Table(Record):
    """machine: all that the times depend on besides the shapes."""

    schema_: Literal["par4d.matmul"] = Field(default="par4d.matmul", alias="schema")
    version: Literal[1] = 1
    machine: dict[str, str]
    shapes: tuple[TunedShape, ...] = ()


def cache_file(machine: dict[str, str]) -> Path | None:
    """Where this machine's table is: below $XDG_CACHE_HOME, or ~/.cache; None for a user without a home."""
    name = hashlib.blake2b(json.dumps(machine, sort_keys=True).encode(), digest_size=8).hexdigest()
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return home / "par4d" / "matmul" / f"{name}.json"


def load(file: Path | None, machine: dict[str, str], *, quietly: bool = False) -> Table:
    """The table, or an empty one, with a line that says why unless that has been said."""
    problem = None
    if file is None:
        log.warning("No home folder to keep tuned products in: set XDG_CACHE_HOME, or the next job tunes again.")
        return Table(machine=machine)
    try:
        table = Table.model_validate_json(file.read_bytes())
        if table.machine == machine:
            return table
        problem = "it is of another device or of other libraries"
    except FileNotFoundError:
        pass
    except ValidationError as error:
        problem = first_problem(error)
    except OSError as error:
        problem = str(error)
    if problem and not quietly:
        log.warning("The table of tuned products %s is made anew: %s", file, problem)
    return Table(machine=machine)


def save(file: Path | None, table: Table, timed: TunedShape) -> Table:
    """Put this shape in place of the same one, beside what other jobs have kept meanwhile; what is in the file then.

    Where the file can't be written, a line says so.
    """
    if file is None:
        return table
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.parent, LOCK_S):
            table = load(file, table.machine, quietly=True)
            kept = tuple(shape for shape in table.shapes if key(shape) != key(timed))
            table = table.model_copy(update={"shapes": (*kept, timed)})
            write_text(file, table.model_dump_json(by_alias=True, indent=1))
    except OSError as error:
        log.warning("The table of tuned products can't be kept, so the next job tunes again: %s", error)
    return table


def key(shape: TunedShape) -> tuple[object, ...]:
    """By which a shape is found again."""
    return shape.m, shape.n, shape.k, shape.dtype, shape.forwards, shape.movable
