"""Where a training run reads its tokens: shards on disk (tokens.py) or a formula (`Synthetic`).

A run is checked before anything starts, and its dataset opened for that: numpy and pydantic, slow to load, are loaded
by what reads tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.data.shuffle import Ints


class Dataset(Protocol):
    """Anything a training run can read sequences from."""

    @property
    def vocabulary(self) -> int:
        """Every token is below this."""

    def read(self, seed: int, positions: "Ints", sequence_length: int) -> "Ints":
        """[B, sequence_length + 1] tokens of the sequences at these positions; the last is a target only."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Random tokens, a pure function of (seed, position): nothing to learn and nothing to read."""

    vocabulary: int

    def read(self, seed: int, positions: "Ints", sequence_length: int) -> "Ints":
        import numpy as np

        from engine.data.shuffle import key, mix

        rows_B1 = mix(key(seed, 2) ^ positions.astype(np.uint64))[:, None]
        columns_1S = np.arange(sequence_length + 1, dtype=np.uint64)[None, :]
        high_BS = mix(rows_B1 + columns_1S) >> np.uint64(32)
        return (high_BS * np.uint64(self.vocabulary) >> np.uint64(32)).astype(np.int64)


def open_dataset(data: str, *, vocabulary: int, sequence_length: int) -> Dataset:
    """The dataset that `--data` names ("synthetic" or a folder) for a model of this vocabulary.

    Raises UsageError if the corpus can't be read, has tokens that the model hasn't, or is shorter than a
    sequence.
    """
    if data == "synthetic":
        return Synthetic(vocabulary)
    from engine.data.tokens import Tokens

    tokens = Tokens.open(Path(data))
    if tokens.vocabulary > vocabulary:
        raise UsageError(
            f"The corpus {data} has a vocabulary of {tokens.vocabulary}, but the model's is {vocabulary}: "
            f"take a model with at least {tokens.vocabulary}, or prepare the corpus with --vocab-size "
            f"{vocabulary}."
        )
    tokens.sequences(sequence_length)
    return tokens
