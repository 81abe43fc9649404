"""Llama as an Architecture."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from engine.data.dataset import Text
from engine.errors import UsageError
from engine.models.architecture import Architecture, check_multiple_of_heads, check_positive
from engine.models.network import Network, Section
from engine.models.operations import INITIAL_STD, ONTO_STREAM, Activation, Attention, Linear, Norm, Rotation, Table
from engine.models.tasks import NextToken
from engine.placement import Gaussian

# Llama 3.1's scaling of rotary frequencies: wavelengths below the first are kept, above the second slowed in full.
UNSCALED_SEQUENCE = 8192
KEPT_BELOW, SLOWED_ABOVE = UNSCALED_SEQUENCE / 4, float(UNSCALED_SEQUENCE)


@dataclass(frozen=True, slots=True)
class LlamaConfig(Architecture):
    """Llama, whose query heads, key and value heads, feed-forward's width and vocabulary x splits."""

    family: ClassVar[str] = "llama"
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    """key and value heads, each of which serves heads / kv_heads query heads"""
    ffn: int
    """width of the feed-forward"""
    vocabulary: int
    sequence: int
    tied: bool = False
    rope_theta: float = 5e5
    """base of the rotary frequencies"""
    rope_scaling: float = 1.0
    """by how much the low ones are slowed for sequences beyond 8192 tokens; 1 leaves them"""
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    """biases of query, key and value (Qwen2)"""
    qk_norm: bool = False
    """RMSNorm of each head's query and key before they are turned (Qwen3)"""
    head_features: int | None = None
    """features of a head; without it hidden / heads, which must be whole"""
    padding: int | None = None
    """token from whose places its row of the table learns nothing"""
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        check_positive(self)
        if self.head_features is None:
            check_multiple_of_heads(self.hidden, self.heads)
        if self.heads % self.kv_heads:
            raise UsageError(
                f"A model's heads must be a multiple of its kv_heads, but {self.heads} is not a multiple of "
                f"{self.kv_heads}; {self.kv_heads * (self.heads // self.kv_heads + 1)} would be."
            )
        if self.head_size % 2:
            raise UsageError(
                f"Rotary positions turn pairs of features, but a head of {self.hidden} / {self.heads} has "
                f"{self.head_size}: choose hidden and heads so that it is even."
            )

    @property
    def head_size(self) -> int:
        return self.head_features or self.hidden // self.heads

    @property
    def rotary_features(self) -> int:
        """Features of a head that positions turn: all of them."""
        return self.head_size

    @property
    def attended(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Features of all key heads, as many as of all value heads."""
        return self.kv_heads * self.head_size

    def network(self) -> Network:
        """List the operations. Query, key and value heads are split on their own, and so are the gate and what it
        gates: each rank multiplies its own. Initial values are GPT-2's.
        """
        h, heads, kv_heads, size, ffn = self.hidden, self.heads, self.kv_heads, self.head_size, self.ffn
        a, k = self.attended, self.keys
        onto = Gaussian(INITIAL_STD / sqrt(2 * self.layers))
        head_norms = (
            Norm("attention.norm_q", size, "rmsnorm", heads=heads),
            Norm("attention.norm_k", size, "rmsnorm", heads=kv_heads),
        )
        block = (
            Norm("norm1", h, "rmsnorm"),
            Linear("attention.qkv", a + 2 * k, h, parts=(a, k, k), units=kv_heads, bias=self.qkv_bias),
            *(head_norms if self.qk_norm else ()),
            Rotation(heads, kv_heads, size, size),
            Attention(heads, kv_heads, size, by_heads=self.qk_norm),
            Linear("attention.out", h, a, ONTO_STREAM, units=kv_heads, init=onto),
            Norm("norm2", h, "rmsnorm"),
            Linear("feed_forward.gate_up", 2 * ffn, h, parts=(ffn, ffn)),
            Activation("swiglu", ffn),
            Linear("feed_forward.down", h, ffn, ONTO_STREAM, init=onto),
        )
        head = Linear("head", self.vocabulary, h, tied="tokens" if self.tied else None)
        sections = (
            Section((Table("tokens", self.vocabulary, h),)),
            Section(block, "blocks", self.layers, recomputed=True),
            Section((Norm("norm", h, "rmsnorm"), head)),
        )
        return Network(sections, self.stream)

    @property
    def task(self) -> NextToken:
        return NextToken(Text(self.vocabulary, self.sequence))
