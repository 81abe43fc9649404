"""Record of a pass: the samples of a micro-batch, where their tokens stand, and which of their rows a rank has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UsageError
from engine.layers.counter_random import BatchRows


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a micro-batch, one token of a sample after the other, that a rank has: one of so many equal parts."""

    place: int
    parts: int

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of [B, S, ...]: [1, B S / parts, ...]."""
        rows = whole.flatten(0, 1)
        count = len(rows) // self.parts
        return rows[self.place * count : (self.place + 1) * count].unsqueeze(0)


@dataclass(frozen=True, slots=True)
class Pass:
    """Way of some samples through the network, or through a stage of it."""

    positions: Tensor
    """positions of each sample's tokens, [S]"""
    count: int
    """samples"""
    samples: BatchRows | None = None
    """which of the global batch they are; dropout alone asks"""
    own: Rows | None = None
    """rows of the stream that this rank has, [1, rows, h]; None for all of them, [B, S, h]"""

    def __post_init__(self) -> None:
        """Raise UsageError if ranks can't share the stream's rows equally."""
        tokens = self.count * len(self.positions)
        if self.own is not None and tokens % self.own.parts:
            raise UsageError(
                f"{self.own.parts} ranks share the {tokens} tokens of a micro-batch, which they don't divide: use "
                "another --micro-batch, or a grid whose x divides its tokens."
            )

    @classmethod
    def of(cls, tokens: Tensor, samples: BatchRows | None = None, own: Rows | None = None) -> "Pass":
        """Make the record of samples whose tokens are, or have features, [B, S, ...]."""
        count, length = tokens.shape[:2]
        return cls(torch.arange(length, device=tokens.device), count, samples, own)

    def of_stream(self, whole: Tensor) -> Tensor:
        """Return what of [B, S, ...] belongs to the stream's rows."""
        return whole if self.own is None else self.own.of(whole)

    @property
    def stream_positions(self) -> Tensor:
        """Positions of the stream's rows, [S] where these are of whole samples, else [1, rows]."""
        if self.own is None:
            return self.positions
        return self.own.of(self.positions.expand(self.count, -1))

    def by_sample(self, rows: Tensor) -> Tensor:
        """Return whole samples [B', S, n] of their rows, one after the other. Raises UsageError for parts of some."""
        if self.own is None:
            return rows
        length, count = len(self.positions), rows.shape[1]
        if count % length:
            raise UsageError(
                f"Attention takes whole samples of {length} tokens, but a rank has {count} tokens of the {self.count} "
                "samples of a micro-batch: use a --micro-batch that y divides, or split heads."
            )
        return rows.view(-1, length, rows.shape[2])
