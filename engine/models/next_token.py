"""The task of a causal language model: each token follows from those before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.data.text import Text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class NextToken:
    """tokens: [B, S], targets: [B, S]. See Task."""

    data: Text

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Targets are the next tokens."""
        tokens = samples["tokens"]
        return {"tokens": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}

    def criterion(self) -> "nn.Module":
        """Cross-entropy in nats."""
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy()

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        """The tokens."""
        return (batch["tokens"],)

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        """Every target."""
        return batch["targets"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Of the logits at every position."""
        return criterion(output.flatten(0, 1), batch["targets"].flatten(), divisor)
