"""Tasks: what networks are trained to do. A larger one is a file of its own; none names a network. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.data import CHANNELS
from engine.data.dataset import DataSpec, Images, Text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints, Words

SEGMENTS = 2
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""Share of tokens that are to be found; of these, the share that is masked, and that replaced by a random token."""


class Task(Protocol):
    """Batches and their loss. A batch is a record of arrays, whose first dim is its rows."""

    @property
    def data(self) -> DataSpec:
        """Data that it is trained on."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a batch."""

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Make a batch: contiguous arrays of the caller's own. Random choices follow from seed and positions alone."""

    def criterion(self) -> "nn.Module":
        """Make the serial layer that computes the loss."""

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        """Return what the network takes of a batch."""

    def valid(self, batch: "Mapping[str, Tensor]") -> "int | Tensor":
        """Count the things of a batch over which the loss is a mean; a tensor where it differs from row to row."""

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Sum the loss over those things, divided: a scalar. divisor: their number in the global batch."""

    def right(self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]") -> "Tensor | None":
        """Count those of these things that the output has right; None where nothing is right or wrong."""


class Classifying:
    """Cross-entropy in nats of logits [..., classes], for which a batch has targets."""

    ignores = False
    """Whether targets below 0 don't count."""
    by_token = True
    """Whether each token of a sample has a target."""

    @property
    def classes(self) -> int:
        """Logits of a token or an image."""
        raise NotImplementedError

    def criterion(self) -> "nn.Module":
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy(self.classes, ignores=self.ignores, by_token=self.by_token)

    def valid(self, batch: "Mapping[str, Tensor]") -> "int | Tensor":
        return batch["targets"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        return criterion(output.flatten(0, 1), batch["targets"].flatten(), divisor)

    def right(self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]") -> "Tensor":
        return criterion.right(output.flatten(0, 1), batch["targets"].flatten())  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class NextToken(Classifying):
    """Causal language modelling: each token from those before it. A batch has tokens and targets, each [B, S]."""

    data: Text

    @property
    def classes(self) -> int:
        return self.data.vocabulary

    @property
    def row_bytes(self) -> int:
        return 2 * 8 * self.data.sequence

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        tokens = samples["tokens"]
        return {"tokens": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        return (batch["tokens"],)


@dataclass(frozen=True, slots=True)
class MaskedToken(Classifying):
    """BERT's pre-training: masked tokens are to be found (Devlin et al. 2018, 3.1).

    A batch has tokens, segments and targets, each [B, S]. The vocabulary's last token is the mask. The first half of a
    row is the first segment, and the rest the second.
    """

    data: Text

    ignores = True

    @property
    def classes(self) -> int:
        return self.data.vocabulary

    @property
    def row_bytes(self) -> int:
        return 3 * 8 * self.data.sequence

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Mask tokens, each by a hash of the seed, its row's position in the training, and its place in the row."""
        import numpy as np

        from engine.data.shuffle import key, mix

        tokens = samples["tokens"][:, :-1]
        length, vocabulary = self.data.sequence, self.data.vocabulary
        places = np.arange(length, dtype=np.uint64)
        bits = mix(mix(key(seed, 3) ^ positions.astype(np.uint64))[:, None] + places)
        share = _share(bits)
        chosen = (share < CHOSEN) | (share == share.min(axis=1, keepdims=True))  # one a row at least
        fate = _share(mix(bits + np.uint64(1)))
        other = (_share(mix(bits + np.uint64(2))) * vocabulary).astype(np.int64)
        shown = np.where(fate < MASKED, vocabulary - 1, np.where(fate < MASKED + RANDOM, other, tokens))
        segments = np.broadcast_to(np.arange(length) * SEGMENTS // length, tokens.shape)
        return {
            "tokens": np.where(chosen, shown, tokens),
            "segments": segments.copy(),
            "targets": np.where(chosen, tokens, -100),
        }

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        return batch["tokens"], batch["segments"]

    def valid(self, batch: "Mapping[str, Tensor]") -> "Tensor":
        """Count the chosen tokens, over which the loss is a mean; rows have more or fewer."""
        return (batch["targets"] >= 0).sum()


def _share(bits: "Words") -> "NDArray[np.float64]":
    import numpy as np

    return (bits >> np.uint64(11)).astype(np.float64) * 2**-53


@dataclass(frozen=True, slots=True)
class ImageClass(Classifying):
    """Classification of images. A batch has pixels, bytes [B, C, Y, X], and labels [B]."""

    data: Images

    by_token = False

    @property
    def classes(self) -> int:
        assert self.data.classes is not None
        return self.data.classes

    @property
    def row_bytes(self) -> int:
        return CHANNELS * self.data.side**2 + 8

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        return samples

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        return (scale_pixels(batch["pixels"]),)

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        return batch["labels"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        return criterion(output, batch["labels"], divisor)

    def right(self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]") -> "Tensor":
        return criterion.right(output, batch["labels"])  # type: ignore[operator]


def scale_pixels(pixels: "Tensor") -> "Tensor":
    """Scale pixels to -1 .. 1, in float32: bytes are sent to a device."""
    return pixels.float().div_(127.5).sub_(1)
