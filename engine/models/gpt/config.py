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
    """Splits attention heads and the vocabulary over x."""

    @property
    def family(self) -> str:
        return "gpt"

    def check(self, grid: Grid) -> None:
        check_splits(self, grid, over_x={"attention heads": self.heads})

    def placements(self) -> dict[str, Placement]:
        return gpt_placements(self)

    @property
    def ties(self) -> Mapping[str, str]:
        return {"head.weight": "tokens.weight"} if self.tied else {}

    def forward_flops(self, sequences: int) -> ForwardFlops:
        return gpt_forward_flops(self, sequences)

    def kept_features(self) -> KeptFeatures:
        """Over x: query, key and value, attention's result, and the feed-forward's width before and after GELU. Over y:
        both norms' results. GELU's backward makes one gradient of another while its input is kept.
        """
        h, wide = self.hidden, 4 * self.hidden
        feed_forward = FeedForwardFeatures(kept=2 * wide, last=wide, bend=3 * wide, first=wide)
        return KeptFeatures((3 + 1) * h + 2 * wide, over_y=2 * h, norm=self.norm, feed_forward=feed_forward)

    def serial(self, *, checkpoint_activations: bool = False) -> "SerialModel":
        from engine.models.gpt.model import GPT  # loads torch

        return GPT(self, checkpoint_activations=checkpoint_activations)
