"""BERT's pre-training masks some tokens, and the network finds them (Devlin et al. 2018, 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.data.text import Text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints, Words

SEGMENTS = 2
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""A share of all tokens is to be found; of these one share is masked, and another replaced by a random token."""


@dataclass(frozen=True, slots=True)
class MaskedToken:
    """Its batch has tokens, segments and targets, each [B, S].

    The vocabulary's last token is the mask. The first half of a row is the first segment, and the rest the second.
    """

    data: Text

    @property
    def row_bytes(self) -> int:
        """Count 64-bit numbers."""
        return 3 * 8 * self.data.sequence

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Mask tokens. What happens to a token is a hash of the seed, its row's position in the training, and its place
        in the row.
        """
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

    def criterion(self) -> "nn.Module":
        """Make cross-entropy in nats, which ignores tokens that were not chosen."""
        from engine.layers.loss import SerialCrossEntropy  # loads torch

        return SerialCrossEntropy(ignores=True)

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        return batch["tokens"], batch["segments"]

    def valid(self, batch: "Mapping[str, Tensor]") -> "Tensor":
        """Count the chosen tokens, over which the loss is a mean; rows have more or fewer."""
        return (batch["targets"] >= 0).sum()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        return criterion(output.flatten(0, 1), batch["targets"].flatten(), divisor)


def _share(bits: "Words") -> "NDArray[np.float64]":
    """Make numbers from 0 to below 1 of the upper 53 of 64 random bits."""
    import numpy as np

    return (bits >> np.uint64(11)).astype(np.float64) * 2**-53
