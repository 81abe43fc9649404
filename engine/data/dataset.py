"""Datasets: samples from a folder that `engine data` has prepared, or of a formula.

A run is checked before anything starts, and its dataset opened for that: numpy and pydantic, slow to load, are loaded
by what reads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from engine.data import CHANNELS
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.data.shuffle import Arrays, Ints


Samples = Literal["sequences", "images"]
SYNTHETIC = "synthetic"
"""Name of samples of a formula, both as --data and as their identity."""


class Dataset(Protocol):
    """Anything that a training run can read samples from."""

    @property
    def identity(self) -> str | None:
        """Digest that tells these samples from any others; None if it isn't known."""

    @property
    def tokenizer(self) -> Path | None:
        """File of the tokenizer that made the samples; None where none did."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of what labels stand for, in their order; none where samples have no labels, or these no names."""

    @property
    def count(self) -> int:
        """Samples of an epoch; 0 of a formula, which has no end."""

    def verify(self) -> None:
        """Read all of it, and raise UsageError for what isn't as it was prepared."""

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Read the samples at these positions, one a row of each array, as the seed orders them."""


class DataSpec(Protocol):
    """Data that a network takes: their kind, such as text, and their sizes."""

    kind: ClassVar[str]
    samples: ClassVar[Samples]

    def synthetic(self) -> Dataset:
        """Make random samples, a pure function of seed and position: nothing to learn and nothing to read."""

    def open(self, folder: Path) -> Dataset:
        """Open a prepared folder. Raises UsageError if it can't be read, or doesn't fit the network."""


def open_dataset(data: str, spec: DataSpec) -> Dataset:
    """Open the dataset that `--data` names: "synthetic" or a folder. Raises UsageError as DataSpec.open does."""
    return spec.synthetic() if data == SYNTHETIC else spec.open(Path(data))


class Synthetic:
    """Samples that a formula makes."""

    identity = SYNTHETIC
    tokenizer: None = None
    classes: tuple[str, ...] = ()
    count = 0

    def verify(self) -> None:
        """Do nothing: a formula is always as it was."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text of tokens below vocabulary. A sample has one token more than a sequence, which is a target only."""

    kind: ClassVar[str] = "text"
    samples: ClassVar[Samples] = "sequences"
    vocabulary: int
    sequence: int

    def synthetic(self) -> Dataset:
        return SyntheticText(self)

    def open(self, folder: Path) -> Dataset:
        from engine.data.tokens import Tokens

        tokens = Tokens.open(folder, self.sequence)
        if tokens.header.vocabulary > self.vocabulary:
            raise UsageError(
                f"The corpus {folder} has a vocabulary of {tokens.header.vocabulary}, but the model's is "
                f"{self.vocabulary}: take one with at least as many, as --vocab {tokens.header.vocabulary} makes of "
                f"any but an hf:DIR, or prepare the corpus with --vocab-size {self.vocabulary}."
            )
        return tokens


@dataclass(frozen=True, slots=True)
class SyntheticText(Synthetic):
    """Uniform random tokens."""

    spec: Text

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Make tokens [B, sequence + 1]."""
        import numpy as np

        from engine.data.shuffle import key, mix

        rows_B1 = mix(key(seed, 2) ^ positions.astype(np.uint64))[:, None]
        columns_1S = np.arange(self.spec.sequence + 1, dtype=np.uint64)[None, :]
        high_BS = mix(rows_B1 + columns_1S) >> np.uint64(32)
        return {"tokens": (high_BS * np.uint64(self.spec.vocabulary) >> np.uint64(32)).astype(np.int64)}


@dataclass(frozen=True, slots=True)
class Images:
    """Square images of three channels of bytes, and a label below classes; without classes the bytes alone count."""

    kind: ClassVar[str] = "images"
    samples: ClassVar[Samples] = "images"
    side: int
    """Pixels along a side."""
    classes: int | None = None

    def synthetic(self) -> Dataset:
        return SyntheticImages(self)

    def open(self, folder: Path) -> Dataset:
        from engine.data.image_set import ImageSet

        images = ImageSet.open(folder)
        if images.header.size != self.side:
            raise UsageError(
                f"The images of {folder} have {images.header.size} pixels a side, but the model takes {self.side}: "
                f"prepare them with --size {self.side}."
            )
        if self.classes is None:
            return images
        if not images.header.classes:
            raise UsageError(
                f"The images of {folder} are of no classes, but the model tells classes apart: prepare a folder with a "
                "subfolder of pictures for each class."
            )
        if (count := len(images.header.classes)) > self.classes:
            raise UsageError(
                f"The images of {folder} are of {count} classes, but the model knows {self.classes}: take a model with "
                f"--classes {count}."
            )
        return images


@dataclass(frozen=True, slots=True)
class SyntheticImages(Synthetic):
    """Uniform random bytes, and labels that have nothing to do with them."""

    spec: Images

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Make pixels [B, 3, side, side], and labels [B] if there are classes."""
        import numpy as np

        from engine.data.shuffle import key, mix

        side = self.spec.side
        rows_B = mix(key(seed, 3) ^ positions.astype(np.uint64))
        pixels = CHANNELS * side * side
        columns_W = np.arange(-(-pixels // 8), dtype=np.uint64)
        words_BW = mix(mix(rows_B)[:, None] + columns_W)
        bytes_BP = words_BW.astype("<u8").view(np.uint8)[:, :pixels]
        arrays: Arrays = {"pixels": bytes_BP.reshape(-1, CHANNELS, side, side).copy()}
        if self.spec.classes is not None:
            labels_B = (mix(rows_B) >> np.uint64(32)) * np.uint64(self.spec.classes) >> np.uint64(32)
            arrays["labels"] = labels_B.astype(np.int64)
        return arrays
