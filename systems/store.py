"""Measurements of a system, in measured/NAME.yaml.

Its links are the database of axonn-sc24 V-B, which suites/bandwidth.py writes by itself from what `bench collectives`
finds there; `par4d calibrate` writes them and what a device does. A planner asks systems.measured() for it.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from engine.schema import Record
from systems.device import Dtype, Fact
from systems.files import read_as, write

FOLDER = Path(__file__).parent / "measured"

Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Pair = Annotated[str, Field(pattern=r"^[1-9]\d{0,8}x[1-9]\d{0,8}$")]
"""G0xG1 stands for groups of G1 ranks that are G0 apart."""
Name = Literal["all_gather", "reduce_scatter", "all_reduce"]
Kinds = dict[Name, Rate]


class Cores(Record):
    """Cores that ranks under one operating system shared."""

    ranks: int = Field(gt=0)
    cores: float = Field(gt=0)

    def ranks_per_core(self, ranks: int) -> float:
        """Return the number of ranks of a job that take turns on a core; at least 1."""
        return max(1.0, min(ranks, self.ranks) / self.cores)


class Performance(Record):
    """Inputs of the performance model besides a machine's data sheet and its links, each explained in
    engine/simulator/machine.py.

    `par4d calibrate` measures them; where nobody has run that, the system's own file has what follows from published
    times. The first four were fitted to measured times.
    """

    products: float = Field(gt=0, le=1)
    link: float = Field(gt=0, le=1)
    fading: float = Field(ge=0)
    slowdown: float = Field(ge=0)
    spread: float = Field(gt=0)
    """Nine of ten times that nothing was fitted to lie within the factor 1 + spread of the predicted one
    (engine/validation/held_out.py).
    """
    fitted_to: tuple[str, ...] = Field(min_length=1)
    deviations: dict[Literal["products", "link", "fading", "slowdown"], Annotated[float, Field(ge=0)]] = {}
    """Standard deviations of the fitted numbers."""
    modes: dict[Literal["NN", "NT", "TN"], Fact] = {}
    """Part of the empirical peak, which is that of mode NN, that products reach in a mode; 1 for one not given."""
    peak_flops: dict[Dtype, Fact] = {}
    """Rate of one rank while all work, where ranks share a device, as the next two."""
    memory_bytes_per_s: Fact | None = None
    kernel_s: Fact | None = None
    by_size: dict[Dtype, dict[Annotated[int, Field(gt=0)], Positive]] = {}
    """Flop/s of square matrix products, by their number of rows."""
    shared: Cores | None = None
    """Cores on which ranks take turns; all numbers are those of one rank's share then."""


class Source(Record):
    """Origin of measurements."""

    command: str = Field(min_length=1)
    commit: str | None = None
    """The project's, with "modified" where files differed from it."""
    device: str = Field(min_length=1)
    """Name a rank's device (or processor) gives itself."""
    processor: str | None = None
    """All that tells the processor from others of that name."""
    hosts: int = Field(gt=0)
    ranks: int = Field(gt=0)


class OfProcessor(Record):
    """Processor time that a collective takes of a rank (engine/simulator/collectives.py), by step and by byte."""

    step_s: NotNegative
    byte_s: NotNegative


class Between(Record):
    """Rates of rings between nodes, in bytes/s and one direction."""

    bytes_per_s: Rate
    """Rate of one rank a node with nothing beside it, over the three collectives."""
    kinds: Kinds = {}
    """Rate of each collective."""
    shared: dict[Pair, Rate] = {}
    """Each ring's rate while all ranks of all nodes communicate."""
    link_bytes_per_s: Rate
    """With step_s and half_bytes the Link (engine/simulator/collectives.py) that fits small messages too."""
    step_s: NotNegative
    half_bytes: NotNegative
    processor: dict[Name, OfProcessor] = {}
    """Processor time of each collective; empty for accelerators, and where it wasn't measured."""

    def node_rate(self) -> float:
        """Return the rate at which all ranks of a node send to other nodes together, at most."""
        return max([self.bytes_per_s, *(int(pair.partition("x")[0]) * rate for pair, rate in self.shared.items())])


class Measured(Record):
    """Measurements of one system."""

    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    source: Source
    message_bytes: int = Field(gt=0)
    """Size of the largest buffer, in or out."""
    devices_per_node: int = Field(gt=0)
    """Ranks of a node."""
    intra: dict[Pair, Rate] = {}
    """Rate of each ring within a node while all of the node communicate, in bytes/s over the three collectives."""
    intra_kinds: dict[Pair, Kinds] = {}
    """Rate of each collective there."""
    intra_step_s: NotNegative | None = None
    """As in Between, like intra_processor, among all ranks of a node; measured on processors only."""
    intra_processor: dict[Name, OfProcessor] = {}
    inter: Between | None = None
    performance: Performance | None = None
    """None where only the links were measured."""

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
    head = f"# Measured on {name}. Links: bytes per second of a ring, in one direction.\n"
    return write(FOLDER / f"{name}.yaml", head, as_data(found))


def as_data(found: Measured) -> dict[str, object]:
    return found.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
