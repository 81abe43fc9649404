"""What was measured on a system: measured/NAME.yaml.

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
"""G0xG1: groups of G1 ranks that are G0 apart."""


class Source(Record):
    """Where the numbers come from. device: what a rank's device calls itself, for CPUs the processor; processor: all
    that tells it from others of that name. commit: of this project, "modified" where files differed from it.
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
    """What a collective takes of a rank's processor (engine/planning/collectives.py): seconds a step and a byte."""

    step_s: NotNegative
    byte_s: NotNegative


class Between(Record):
    """Between nodes, in bytes/s of a ring and one direction.

    bytes_per_s: one rank a node, nothing beside it, the three collectives together; kinds: each of them. shared: all
    ranks of all nodes at once, each ring's. step_s, half_bytes: of the Link (engine/planning/collectives.py) that fits
    small messages too, whose bandwidth is link_bytes_per_s. processor: what each kind takes of a processor; empty for
    accelerators, and where it wasn't measured.
    """

    bytes_per_s: Rate
    kinds: Kinds = {}
    shared: dict[Pair, Rate] = {}
    link_bytes_per_s: Rate
    step_s: NotNegative
    half_bytes: NotNegative
    processor: dict[Name, OfProcessor] = {}

    def way_out(self) -> float:
        """What all ranks of a node send to other nodes together, at most."""
        return max([self.bytes_per_s, *(int(pair.partition("x")[0]) * rate for pair, rate in self.shared.items())])


class Measured(Record):
    """One system's. intra: within a node, in bytes/s of each ring, while all of a node communicate at once, the three
    collectives together; intra_kinds: each of them. intra_step_s, intra_processor: as of Between, among all ranks of a
    node; both are measured of processors alone.

    message_bytes: of the largest buffer, in or out. devices_per_node: ranks that a node had. performance: of the same
    devices; None where only the links were measured.
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
        """The same by (G0, G1)."""
        return {_numbers(pair): rate for pair, rate in self.intra.items()}

    def kinds_of(self) -> dict[tuple[int, int], dict[str, float]]:
        """Of what a pair (G0, G1) has for all, the part that each collective has."""
        return {
            _numbers(pair): {kind: rate / self.intra[pair] for kind, rate in kinds.items()}
            for pair, kinds in self.intra_kinds.items()
            if pair in self.intra
        }


def _numbers(pair: str) -> tuple[int, int]:
    g0, g1 = pair.split("x")
    return int(g0), int(g1)


def measured(name: str) -> Measured | None:
    """What was measured on the system of that name; None where nothing was. Raises SystemFileError for a bad file."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        return None
    return read_as(Measured, path, what="a measurement", holds="date, source and intra")


def keep(name: str, found: Measured) -> Path:
    """Write it in place of what was measured before. Returns the file. Raises OSError where it can't be written."""
    path = FOLDER / f"{name}.yaml"
    head = f"# Measured on {name}. Links: bytes per second of a ring, in one direction.\n"
    body = yaml.safe_dump(as_data(found), sort_keys=False, allow_unicode=True, width=120)
    write_text(path, head + body)
    return path


def as_data(found: Measured) -> dict[str, object]:
    """As the file has it."""
    return found.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
