"""Networks take text as sequences of tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine.data.dataset import Dataset, Samples, Synthetic
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class Text:
    """It is text of tokens below vocabulary. A sample has one token more than a sequence, which is a target only."""

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
    """It makes uniform random tokens."""

    spec: Text

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Make tokens [B, sequence + 1]."""
        import numpy as np

        from engine.data.shuffle import key, mix

        rows_B1 = mix(key(seed, 2) ^ positions.astype(np.uint64))[:, None]
        columns_1S = np.arange(self.spec.sequence + 1, dtype=np.uint64)[None, :]
        high_BS = mix(rows_B1 + columns_1S) >> np.uint64(32)
        return {"tokens": (high_BS * np.uint64(self.spec.vocabulary) >> np.uint64(32)).astype(np.int64)}
