"""A task is what a network is trained to do. It is a file beside this one, which names no network. No torch in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from engine.data.dataset import DataSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints


class Task(Protocol):
    """It says what a batch and its loss are. A batch is a record of arrays, whose first dim is its rows."""

    @property
    def data(self) -> DataSpec:
        """Say which data it is trained on."""

    @property
    def row_bytes(self) -> int:
        """Count the bytes of a row of a batch."""

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Make a batch: contiguous arrays of the caller's own. Random choices follow from seed and positions alone."""

    def criterion(self) -> "nn.Module":
        """Make the serial layer that computes the loss."""

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        """Give what the network takes of a batch."""

    def valid(self, batch: "Mapping[str, Tensor]") -> "int | Tensor":
        """Count the things of a batch over which the loss is a mean; a tensor where it differs from row to row."""

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Sum the loss over those things, divided: a scalar. divisor: how many of them the global batch has."""
