"""What was timed before, kept for the next job: a file for each device with its libraries. No torch.

A file that can't be read, or is of another device, is as good as none.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from engine.files import write_text
from engine.result.matmul import TunedShape
from engine.schema import Record, first_problem

log = logging.getLogger(__name__)


class Table(Record):
    """machine: all that the times depend on besides the shapes."""

    schema_: Literal["par4d.matmul"] = Field(default="par4d.matmul", alias="schema")
    version: Literal[1] = 1
    machine: dict[str, str]
    shapes: tuple[TunedShape, ...] = ()


def cache_file(machine: dict[str, str]) -> Path:
    """Where this machine's table is: below $XDG_CACHE_HOME, or ~/.cache."""
    name = hashlib.blake2b(json.dumps(machine, sort_keys=True).encode(), digest_size=8).hexdigest()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "par4d" / "matmul" / f"{name}.json"


def load(file: Path, machine: dict[str, str]) -> Table:
    """The table, or an empty one with a line that says why."""
    problem = None
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
    if problem:
        log.warning("The table of tuned products %s is made anew: %s", file, problem)
    return Table(machine=machine)


def save(file: Path, table: Table, timed: Iterable[TunedShape]) -> None:
    """Put these shapes in place of the same ones. Where the file can't be written, a line says so."""
    new = tuple(timed)
    kept = tuple(shape for shape in table.shapes if all(key(shape) != key(other) for other in new))
    try:
        whole = table.model_copy(update={"shapes": (*kept, *new)})
        write_text(file, whole.model_dump_json(by_alias=True, indent=1))
    except OSError as error:
        log.warning("The table of tuned products can't be kept, so the next job tunes again: %s", error)


def key(shape: TunedShape) -> tuple[object, ...]:
    """By which a shape is found again."""
    return shape.m, shape.n, shape.k, shape.dtype, shape.forwards, shape.movable
