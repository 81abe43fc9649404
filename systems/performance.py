"""Inputs of the performance model besides a machine's data sheet and its links.

`par4d calibrate` measures it, and keeps it in measured/NAME.yaml; where nobody has run that, the system's own file has
what follows from published times.
"""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field

from engine.schema import Record

Dtype = Literal["bf16", "fp16", "fp32", "tf32", "fp64"]


Value = TypeVar("Value")


class Sourced(Record, Generic[Value]):
    """Value and its source."""

    value: Value
    source: str = Field(min_length=1)


Fact = Sourced[Annotated[float, Field(gt=0)]]
Count = Sourced[Annotated[int, Field(gt=0)]]


class Cores(Record):
    """How many ranks ran under one operating system, and how many cores they shared."""

    ranks: int = Field(gt=0)
    cores: float = Field(gt=0)

    def ranks_a_core(self, ranks: int) -> float:
        """Say how many ranks of such a job take turns on a core; at least 1."""
        return max(1.0, min(ranks, self.ranks) / self.cores)


class Performance(Record):
    """Numbers of the performance model (each is explained in engine/simulator/machine.py).

    products, link, fading, slowdown: were fitted to the measured times that fitted_to names; deviations: with these
    standard deviations. spread: nine times in ten a time that nothing was fitted to lies within the factor 1 + spread
    of the predicted one (engine/validation/held_out.py). modes: the part of the empirical peak, which is that of mode
    NN, that products reach in a mode; 1 for a mode that isn't given. peak_flops, memory_bytes_per_s, kernel_s: are
    those of one rank while all work, where ranks share a device. by_size: flop/s that square matrix products of so many
    rows reach. shared: the cores on which ranks take turns; all numbers are those of one rank's share then.
    """

    products: float = Field(gt=0, le=1)
    link: float = Field(gt=0, le=1)
    fading: float = Field(ge=0)
    slowdown: float = Field(ge=0)
    spread: float = Field(gt=0)
    fitted_to: tuple[str, ...] = Field(min_length=1)
    deviations: dict[Literal["products", "link", "fading", "slowdown"], Annotated[float, Field(ge=0)]] = {}
    modes: dict[Literal["NN", "NT", "TN"], Fact] = {}
    peak_flops: dict[Dtype, Fact] = {}
    memory_bytes_per_s: Fact | None = None
    kernel_s: Fact | None = None
    by_size: dict[Dtype, dict[Annotated[int, Field(gt=0)], Annotated[float, Field(gt=0)]]] = {}
    shared: Cores | None = None
