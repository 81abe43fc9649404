"""What the performance model takes of a machine besides its data sheet and its links.

`par4d calibrate` measures it, and keeps it in measured/NAME.yaml; where nobody has run that, the system's own file has
what follows from published times.
"""

from typing import Annotated, Literal

from pydantic import Field

from engine.schema import Record

Dtype = Literal["bf16", "fp16", "fp32", "tf32", "fp64"]


class Fact(Record):
    """A number and where it comes from."""

    value: float = Field(gt=0)
    source: str = Field(min_length=1)


class Cores(Record):
    """What processors a machine has for its ranks: so many of both there were on each running kernel."""

    ranks: int = Field(gt=0)
    cores: float = Field(gt=0)

    def ranks_a_core(self, ranks: int) -> float:
        """Of a job of so many ranks, that take turns; at least 1."""
        return max(1.0, min(ranks, self.ranks) / self.cores)


class Performance(Record):
    """What the performance model takes besides (engine/planning/machine.py says what each number is).

    products, link, fading, slowdown: fitted to the measured times that fitted_to names. spread: of the errors that are
    left. modes: of the empirical peak, which is that of NN, what products reach in a mode; all of it where that isn't
    told. peak_flops, memory_bytes_per_s, kernel_s: of one rank while all work, where the device is a share of
    something. by_size: flop/s that square matrix products of so many rows reach. shared: by ranks that take turns on
    cores, in which case all of it is of one rank's share.
    """

    products: float = Field(gt=0, le=1)
    link: float = Field(gt=0, le=1)
    fading: float = Field(ge=0)
    slowdown: float = Field(ge=0)
    spread: float = Field(gt=0)
    fitted_to: tuple[str, ...] = Field(min_length=1)
    modes: dict[Literal["NN", "NT", "TN"], Fact] = {}
    peak_flops: dict[Dtype, Fact] = {}
    memory_bytes_per_s: Fact | None = None
    kernel_s: Fact | None = None
    by_size: dict[Dtype, dict[Annotated[int, Field(gt=0)], Annotated[float, Field(gt=0)]]] = {}
    shared: Cores | None = None
