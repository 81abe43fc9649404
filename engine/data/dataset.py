"""A training run reads its samples from a folder that `engine data` has prepared, or takes them from a formula.

A run is checked before anything starts, and its dataset opened for that: numpy and pydantic, slow to load, are loaded
by what reads.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from engine.data.shuffle import Arrays, Ints


Samples = Literal["sequences", "images"]
SYNTHETIC = "synthetic"
"""This names samples of a formula, both as --data and as their identity."""


class Dataset(Protocol):
    """A dataset is anything that a training run can read samples from."""

    @property
    def identity(self) -> str | None:
        """Digest that tells these samples from any others; None if it isn't known."""

    @property
    def tokenizer(self) -> Path | None:
        """File of the tokenizer that made the samples; None where none did."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of what labels stand for, in their order; none where samples have no labels, or these no names."""

    def verify(self) -> None:
        """Read all of it, and raise UsageError for what isn't as it was prepared."""

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Read the samples at these positions, one a row of each array, as the seed orders them."""


class Synthetic:
    """What all samples that a formula makes have in common."""

    identity = SYNTHETIC
    tokenizer: None = None
    classes: tuple[str, ...] = ()

    def verify(self) -> None:
        """Do nothing, as a formula is always as it was."""


class DataSpec(Protocol):
    """It says what data a network takes: their kind, such as text, and in which sizes. samples: what one calls them."""

    kind: ClassVar[str]
    samples: ClassVar[Samples]

    def synthetic(self) -> Dataset:
        """Make random samples, a pure function of seed and position: nothing to learn and nothing to read."""

    def open(self, folder: Path) -> Dataset:
        """Open a prepared folder. Raises UsageError if it can't be read, or doesn't fit the network."""


def open_dataset(data: str, spec: DataSpec) -> Dataset:
    """Open the dataset that `--data` names: "synthetic" or a folder. Raises UsageError as DataSpec.open does."""
    return spec.synthetic() if data == SYNTHETIC else spec.open(Path(data))
