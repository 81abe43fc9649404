"""The task of finding an image's class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.data.images import Images

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class ImageClass:
    """pixels: [B, 3, side, side] from -1 to 1, classes: [B]. See Task."""

    data: Images

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Bytes become numbers in float32."""
        import numpy as np

        pixels = samples["pixels"].astype(np.float32)
        return {"pixels": pixels / np.float32(127.5) - 1, "classes": samples["classes"]}

    def criterion(self) -> "nn.Module":
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy()

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        return (batch["pixels"],)

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        return batch["classes"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        return criterion(output, batch["classes"], divisor)
