"""Measurements of a system, in measured/NAME.yaml.

Its links are the database of axonn-sc24 V-B, which suites/bandwidth.py writes by itself from what `bench collectives`
finds there; `par4d calibrate` writes them and what a device does. A planner asks systems.measured() for it.
"""

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from engine.files import write_text
from engine.schema import Record
from systems.files import read_as
from systems.performance import Performance

FOLDER = Path(__file__).parent / "measured"

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Pair = Annotated[str, Field(pattern=r"^[1-9]\d{0,8}x[1-9]\d{0,8}$")]
"""G0xG1 stands for groups of G1 ranks that are G0 apart."""


class Source(Record):
    """Origin of the numbers.

    device: what a rank's device (or processor) calls itself. processor: all that tells it from others of that name.
    commit: the project's, with "modified" where files differed from it.
    """

    command: str = Field(min_length=1)
    commit: str | None = None
    device: str = Field(min_length=1)
    processor: str | None = None
    hosts: int = Field(gt=0)
    ranks: int = Field(gt=0)


Name = Literal["all_gather", "reduce_scatter", "all_reduce"]
Kinds = dict[Name, Rate]


class OfProcessor(Record):
    """Processor time that a collective takes of a rank (engine/simulator/collectives.py), by step and by byte."""

    step_s: NotNegative
    byte_s: NotNegative


class Between(Record):
    """Rates of rings between nodes, in bytes/s and one direction.

    bytes_per_s: the rate of one rank a node with nothing beside it, over the three collectives; kinds: that of each.
    shared: each ring's rate while all ranks of all nodes communicate. link_bytes_per_s, step_s, half_bytes: the Link
    (engine/simulator/collectives.py) that fits small messages too. processor: the processor time of each kind; empty
    for accelerators, and where it wasn't measured.
    """

    bytes_per_s: Rate
    kinds: Kinds = {}
    shared: dict[Pair, Rate] = {}
    link_bytes_per_s: Rate
    step_s: NotNegative
    half_bytes: NotNegative
    processor: dict[Name, OfProcessor] = {}

    def way_out(self) -> float:
        """Say what all ranks of a node send to other nodes together, at most."""
        return max([self.bytes_per_s, *(int(pair.partition("x")[0]) * rate for pair, rate in self.shared.items())])


class Measured(Record):
    """Measurements of one system.

    intra: what each ring within a node reaches while all of the node communicate, in bytes/s over the three
    collectives; intra_kinds: the same of each. intra_step_s, intra_processor: are as Between has them, among all ranks
    of a node, and are measured on processors only. message_bytes: the size of the largest buffer, in or out.
    devices_per_node: how many ranks a node had. performance: what the same devices reach; None where only the links
    were measured.
    """

    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    source: Source
    message_bytes: int = Field(gt=0)
    devices_per_node: int = Field(gt=0)
    intra: dict[Pair, Rate] = {}
    intra_kinds: dict[Pair, Kinds] = {}
    intra_step_s: NotNegative | None = None
    intra_processor: dict[Name, OfProcessor] = {}
    inter: Between | None = None
    performance: Performance | None = None

    def intra_of(self) -> dict[tuple[int, int], float]:
        """Return the rates within a node, by (G0, G1)."""
        return {_numbers(pair): rate for pair, rate in self.intra.items()}

    def kinds_of(self) -> dict[tuple[int, int], dict[str, float]]:
        """Return each collective's rate by that of all three, for each pair (G0, G1)."""
        return {
            _numbers(pair): {kind: rate / self.intra[pair] for kind, rate in kinds.items()}
            for pair, kinds in self.intra_kinds.items()
            if pair in self.intra
        }


def _numbers(pair: str) -> tuple[int, int]:
    g0, g1 = pair.split("x")
    return int(g0), int(g1)


def measured(name: str) -> Measured | None:
    """Read what was measured on that system; None where nothing was. Raises SystemFileError for a bad file."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        return None
    return read_as(Measured, path, what="a measurement", holds="date, source and intra")


def keep(name: str, found: Measured) -> Path:
    """Replace what was measured before; returns the file. Raises OSError where it can't be written."""
    path = FOLDER / f"{name}.yaml"
    head = f"# Measured on {name}. Links: bytes per second of a ring, in one direction.\n"
    body = yaml.safe_dump(as_data(found), sort_keys=False, allow_unicode=True, width=120)
    write_text(path, head + body)
    return path


def as_data(found: Measured) -> dict[str, object]:
    return found.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
