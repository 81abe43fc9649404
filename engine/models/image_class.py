"""The task of a network that classifies images: which of some classes is each of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.data.images import Images

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class ImageClass:
    """pixels: bytes [B, C, Y, X], labels: [B]. See Task."""

    data: Images

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Samples as they are."""
        return samples

    def criterion(self) -> "nn.Module":
        """Cross-entropy in nats."""
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy()

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        """The pixels from -1 to 1, in float32: what is sent to a device are bytes."""
        return (batch["pixels"].float().div_(127.5).sub_(1),)

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        """Every image."""
        return batch["labels"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Of the classes' scores."""
        return criterion(output, batch["labels"], divisor)
