"""Llama as an Architecture."""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from engine.models.architecture import Architecture
from engine.models.llama.shape import LlamaShape
from engine.models.network import Network, Stage
from engine.models.operations import INITIAL_STD, Activation, Attention, Linear, Norm, Rotation, Table
from engine.placement import TRANSPOSED

if TYPE_CHECKING:
    from engine.models.serial import SerialModel


@dataclass(frozen=True, slots=True)
class LlamaConfig(LlamaShape, Architecture):
    """Splits query heads, key and value heads, the feed-forward's width and the vocabulary over x."""

    @property
    def family(self) -> str:
        return "llama"

    def network(self) -> Network:
        """Query, key and value heads are split on their own, and so are the gate and what it gates: each rank
        multiplies its own. Initial values are GPT-2's.
        """
        h, heads, kv_heads, size, ffn = self.hidden, self.heads, self.kv_heads, self.head_size, self.ffn
        a, k = self.attended, self.keys
        onto_std = INITIAL_STD / sqrt(2 * self.layers)
        head_norms = (
            Norm("attention.norm_q", size, "rmsnorm", heads=heads),
            Norm("attention.norm_k", size, "rmsnorm", heads=kv_heads),
        )
        block = (
            Norm("norm1", h, "rmsnorm"),
            Linear("attention.qkv", a + 2 * k, h, parts=(a, k, k), bias=self.qkv_bias),
            *(head_norms if self.qk_norm else ()),
            Rotation(heads, kv_heads, size, size),
            Attention(heads, kv_heads, size, by_heads=self.qk_norm),
            Linear("attention.out", h, a, TRANSPOSED, std=onto_std),
            Norm("norm2", h, "rmsnorm"),
            Linear("feed_forward.gate_up", 2 * ffn, h, parts=(ffn, ffn)),
            Activation("swiglu", ffn),
            Linear("feed_forward.down", h, ffn, TRANSPOSED, std=onto_std),
        )
        stages = (
            Stage((Table("tokens", self.vocabulary, h),)),
            Stage(block, "blocks", self.layers, recomputed=True),
            Stage((Norm("norm", h, "rmsnorm"), Linear("head", self.vocabulary, h))),
        )
        return Network(stages, self.sequence, {"head.weight": "tokens.weight"} if self.tied else {})

    def serial(self, *, checkpoint_activations: bool = False) -> "SerialModel":
        from engine.models.llama.model import Llama  # loads torch

        return Llama(self, checkpoint_activations=checkpoint_activations)
