"""A network that classifies images finds the class of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.data.colours import CHANNELS
from engine.data.images import Images

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class ImageClass:
    """Its batch has pixels, bytes [B, C, Y, X], and labels [B]."""

    data: Images

    @property
    def row_bytes(self) -> int:
        """Count a byte a pixel and channel, and a 64-bit label."""
        return CHANNELS * self.data.side**2 + 8

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Take samples as they are."""
        return samples

    def criterion(self) -> "nn.Module":
        """Make cross-entropy in nats."""
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy()

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        """Scale the pixels to -1 .. 1, in float32: what is sent to a device are bytes."""
        return (batch["pixels"].float().div_(127.5).sub_(1),)

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        """Count every image."""
        return batch["labels"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Compute the loss of the classes' scores."""
        return criterion(output, batch["labels"], divisor)
