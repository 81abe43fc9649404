"""Llama as an Architecture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.grid import Grid
from engine.models.architecture import Architecture, FeedForwardFeatures, ForwardFlops, KeptFeatures, check_splits
from engine.models.llama.flops import llama_forward_flops
from engine.models.llama.placements import llama_placements
from engine.models.llama.shape import LlamaShape
from engine.placement import Placement

if TYPE_CHECKING:
    from engine.models.serial import SerialModel


@dataclass(frozen=True, slots=True)
class LlamaConfig(LlamaShape, Architecture):
    """Splits query heads, key and value heads, the feed-forward's width and the vocabulary over x."""

    @property
    def family(self) -> str:
        return "llama"

    def check(self, grid: Grid) -> None:
        parts = {"key and value heads": self.kv_heads, "feed-forward's features": self.ffn}
        check_splits(self, grid, over_x=parts)  # query heads are a multiple of key and value heads

    def placements(self) -> dict[str, Placement]:
        return llama_placements(self)

    @property
    def ties(self) -> Mapping[str, str]:
        return {"head.weight": "tokens.weight"} if self.tied else {}

    def forward_flops(self, sequences: int) -> ForwardFlops:
        return llama_forward_flops(self, sequences)

    def kept_features(self) -> KeptFeatures:
        """Over x: query, key and value, the first two once more after their rotation, and before it where they are
        normed, attention's result, gate and up, the bent gate, and its product with up. Over y: both norms' results.
        SwiGLU's backward makes the gradients of gate and up, and one product on the way, of another gradient while
        gate, up and the bent gate are kept. Queries and keys each keep the rotation of every position.
        """
        turned = (2 if self.qk_norm else 1) * (self.attended + self.keys)
        attention = (self.attended + 2 * self.keys) + turned + self.attended
        feed_forward = FeedForwardFeatures(kept=4 * self.ffn, last=self.ffn, bend=7 * self.ffn, first=2 * self.ffn)
        return KeptFeatures(
            over_x=attention + 4 * self.ffn,
            over_y=2 * self.hidden,
            norm="rmsnorm",
            feed_forward=feed_forward,
            angles=2 * self.sequence * self.head_size,
        )

    def serial(self, *, checkpoint_activations: bool = False) -> "SerialModel":
        from engine.models.llama.model import Llama  # loads torch

        return Llama(self, checkpoint_activations=checkpoint_activations)
