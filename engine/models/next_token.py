"""A causal language model finds each token from those before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.data.text import Text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class NextToken:
    """Its batch has tokens and targets, each [B, S]."""

    data: Text

    @property
    def row_bytes(self) -> int:
        """Count 64-bit numbers."""
        return 2 * 8 * self.data.sequence

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Take the next tokens as targets."""
        tokens = samples["tokens"]
        return {"tokens": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}

    def criterion(self) -> "nn.Module":
        """Make cross-entropy in nats."""
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy()

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        return (batch["tokens"],)

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        """Count every target."""
        return batch["targets"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Compute the loss of the logits at every position."""
        return criterion(output.flatten(0, 1), batch["targets"].flatten(), divisor)
