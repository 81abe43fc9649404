"""GPT as an Architecture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.grid import Grid
from engine.models.architecture import Architecture, FeedForwardFeatures, ForwardFlops, KeptFeatures, check_splits
from engine.models.gpt.flops import gpt_forward_flops
from engine.models.gpt.placements import gpt_placements
from engine.models.gpt.shape import GPTShape
from engine.placement import Placement

if TYPE_CHECKING:
    from engine.models.serial import SerialModel


@dataclass(frozen=True, slots=True)
class GPTConfig(GPTShape, Architecture):
    """Splits attention heads, the feed-forward's width and the vocabulary over x."""

    @property
    def family(self) -> str:
        return "gpt"

    def check(self, grid: Grid) -> None:
        parts = {"attention heads": self.heads}
        if self.ffn is not None:
            parts["feed-forward's features"] = self.ffn
        check_splits(self, grid, over_x=parts)

    def placements(self) -> dict[str, Placement]:
        return gpt_placements(self)

    @property
    def ties(self) -> Mapping[str, str]:
        return {"head.weight": "tokens.weight"} if self.tied else {}

    def forward_flops(self, sequences: int) -> ForwardFlops:
        return gpt_forward_flops(self, sequences)

    def kept_features(self) -> KeptFeatures:
        """Over x: query, key and value, the first two once more where positions turn them, attention's result, and the
        feed-forward's width before and after GELU. Over y: both norms' results. GELU's backward makes one gradient of
        another while its input is kept. Turned queries and keys each keep the rotation of every position.
        """
        h, wide, turned = self.hidden, self.wide, 0 if self.rotary is None else 2 * self.hidden
        feed_forward = FeedForwardFeatures(kept=2 * wide, last=wide, bend=3 * wide, first=wide)
        return KeptFeatures(
            over_x=(3 + 1) * h + turned + 2 * wide,
            over_y=2 * h,
            norm=self.norm,
            feed_forward=feed_forward,
            angles=2 * self.sequence * self.rotary_features,
        )

    def serial(self, *, checkpoint_activations: bool = False) -> "SerialModel":
        from engine.models.gpt.model import GPT  # loads torch

        return GPT(self, checkpoint_activations=checkpoint_activations)
