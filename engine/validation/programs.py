"""Programs of trainers: the passes over memory that they make beside those of the engine's step (rows/programs.yaml).
No torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from engine import yaml_text
from engine.errors import UsageError
from engine.published import Number
from engine.schema import Record, first_problem
from engine.simulator.events import Sweep

FILE = Path(__file__).parent / "rows" / "programs.yaml"


class MemoryPass(Record):
    """Kernels that only read and write, for each element of some tensors."""

    bytes: float = Field(gt=0)
    """Bytes of an element that they read and write."""
    what: str = Field(min_length=1)
    source: str = Field(min_length=1)
    unfused: bool = False
    """Whether fused kernels do without them."""


Passes = tuple[MemoryPass, ...]


@dataclass(frozen=True, slots=True)
class RankStep:
    """Elements of one rank's step."""

    parameters: int
    """Weights of all ranks."""
    ranks: int
    micro_batches: int
    features: int
    """Features of the residual stream, of all tokens of the rank and all blocks."""
    recomputed: float
    """Share of the blocks' forwards that run twice."""
    compiled: bool


class Program(Record):
    """Kernels of a trainer's program that the engine's step doesn't have."""

    compiled: Literal["nothing", "blocks", "all"]
    """Functions that are one kernel each in compiled rows, as tracing.step.Compiled has it."""
    forward: Passes
    """Passes over the residual stream in a block's forward."""
    backward: Passes
    weights: Passes
    """Passes over all weights or their gradients, in each micro-batch."""
    shard: Passes
    """Passes over a rank's own part of them, once a step."""

    def beside(self, step: RankStep) -> Sweep:
        """Add up the passes of one rank's step."""
        times = (
            (self.forward, step.features * (1 + step.recomputed)),
            (self.backward, step.features),
            (self.weights, step.parameters * step.micro_batches),
            (self.shard, step.parameters / step.ranks),
        )
        made = [(one, elements) for passes, elements in times for one in passes if not (one.unfused and step.compiled)]
        return Sweep(round(sum(one.bytes * elements for one, elements in made)), len(made))


@cache
def programs(path: Path = FILE) -> Mapping[str, Program]:
    """Read the programs by framework. Raises UsageError for a file that is something else."""
    try:
        return TypeAdapter(dict[str, Program]).validate_python(yaml_text.read(path))
    except ValidationError as error:
        raise UsageError(f"{path} is no table of programs: {first_problem(error)}") from None


def program_of(number: Number) -> Program:
    """Return the program that a published row was run with. Raises UsageError for a framework that has none."""
    found = programs().get(number.framework)
    if found is None:
        raise UsageError(
            f"Rows of {number.framework or 'no framework'} ({number.source}) can't be predicted without their program: "
            f"add it to {FILE}, which has {', '.join(programs())}."
        )
    return found
