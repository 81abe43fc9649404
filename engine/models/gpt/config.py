"""GPT as an Architecture."""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from engine.models.architecture import Architecture
from engine.models.gpt.shape import GPTShape
from engine.models.network import Network, Stage
from engine.models.operations import INITIAL_STD, Activation, Attention, Linear, Norm, Rotation, Table
from engine.placement import TRANSPOSED

if TYPE_CHECKING:
    from engine.models.serial import SerialModel


@dataclass(frozen=True, slots=True)
class GPTConfig(GPTShape, Architecture):
    """Splits attention heads, the feed-forward's width and the vocabulary over x."""

    @property
    def family(self) -> str:
        return "gpt"

    def network(self) -> Network:
        """Initial values are GPT-2's, whose projections onto the residual stream start smaller."""
        h, heads, size, bias = self.hidden, self.heads, self.head_size, self.bias
        onto_std = INITIAL_STD / sqrt(2 * self.layers)
        kind, centred = self.norm, self.norm == "layernorm"
        positions = [] if self.rotary else [Table("positions", self.rows_of_positions, h, sharded=False)]
        rotation = [Rotation(heads, heads, size, self.rotary)] if self.rotary else []
        block = (
            Norm("norm1", h, kind, bias=centred),
            Linear("attention.qkv", 3 * h, h, parts=(h, h, h), bias=bias),
            *rotation,
            Attention(heads, heads, size, by_heads=self.rotary_features not in (0, size)),
            Linear("attention.out", h, h, TRANSPOSED, bias=bias, std=onto_std),
            Norm("norm2", h, kind, bias=centred, shares_input=self.parallel_residual),
            Linear("feed_forward.fc1", self.wide, h, bias=bias),
            Activation("gelu", self.wide),
            Linear("feed_forward.fc2", h, self.wide, TRANSPOSED, bias=bias, std=onto_std),
        )
        stages = (
            Stage((Table("tokens", self.vocabulary, h), *positions)),
            Stage(block, "blocks", self.layers, recomputed=True),
            Stage((Norm("norm", h, kind, bias=centred), Linear("head", self.vocabulary, h))),
        )
        return Network(stages, self.sequence, {"head.weight": "tokens.weight"} if self.tied else {})

    def serial(self, *, checkpoint_activations: bool = False) -> "SerialModel":
        from engine.models.gpt.model import GPT  # loads torch

        return GPT(self, checkpoint_activations=checkpoint_activations)
