"""Figures of the proof, which tests/reports/simulate_nights.py has simulated: false episodes and what was found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field, ValidationError

from engine import yaml_text
from engine.errors import UsageError
from engine.schema import Record, first_problem
from reports import text
from reports.columns import columns_of
from reports.page import Column, Table

FILE = Path(__file__).with_suffix(".yaml")
NOTE = (
    "Nights drawn at random, with this noise and no change: the upper end of what the episodes of a system-year may be "
    "(95 %). Then nights with a change: the share of cases in which it was found in time."
)
Share = Annotated[float, Field(ge=0, le=1)]


class Row(Record):
    """Noise, number of jobs a night, and what the nights with it have shown."""

    noise: str
    """Name in simulate_nights.py."""
    jobs: Annotated[int, Field(ge=1)]
    canary: bool = False
    """Whether a canary has seen what the figures share."""
    years: Annotated[float, Field(gt=0)]
    """Simulated years of a system."""
    episodes_a_year: Annotated[float, Field(ge=0)]
    """Upper end of the interval."""
    outcome: Literal["pass", "fail", "undecided"]
    found: Mapping[str, Share] = {}
    """Share of cases in which a change was found, by its name, such as "5 % by night 60"."""


class Proof(Record):
    """Rows of the file."""

    rows: tuple[Row, ...]


def proof(file: Path = FILE) -> Proof | None:
    """Read the figures of the proof; None where there is no file. Raises UsageError for one of another form."""
    if not file.exists():
        return None
    try:
        return Proof.model_validate(yaml_text.read(file))
    except ValidationError as error:
        raise UsageError(f"{file} is not a proof of the nights: {first_problem(error)}") from None


def table(of: Proof) -> Table:
    """List the noises, the changes that were looked for in columns of their own."""
    rows = [row.model_dump(exclude={"found"}) | dict(row.found) for row in of.rows]
    changes = dict.fromkeys(name for row in of.rows for name in row.found)
    columns = columns_of(
        Column("Noise", "noise", numeric=False),
        "jobs",
        Column("Canary", "canary", lambda known: "yes" if known else "no", numeric=False),
        Column("Years", "years", "{:g}".format),
        Column("Episodes a year, at most", "episodes_a_year", "{:.2f}".format),
        Column("Outcome", "outcome", numeric=False, bad=frozenset({"fail"}), good=frozenset({"pass"})),
        *(Column(f"Found: {text.clean(name, 60)}", name, text.percent, missing="not tried") for name in changes),
    )
    return Table("Proof", columns, pd.DataFrame(rows, dtype=object), "proof", NOTE)
