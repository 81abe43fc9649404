"""The shape of a Llama. No torch in it."""

from dataclasses import dataclass

from engine.errors import UsageError
from engine.models.architecture import check_multiple_of_heads, check_positive

# Llama 3.1's scaling of rotary frequencies: wavelengths below the first are kept, above the second slowed in full.
UNSCALED_SEQUENCE = 8192
KEPT_BELOW, SLOWED_ABOVE = UNSCALED_SEQUENCE / 4, float(UNSCALED_SEQUENCE)


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """heads must be a multiple of kv_heads. ffn: the width of the feed-forward.

    Each key and value head serves heads / kv_heads query heads. rope_theta: base of the rotary frequencies.
    rope_scaling: by how much the low ones are slowed for sequences beyond 8192 tokens; 1 leaves them. qkv_bias: of
    query, key and value (Qwen2). qk_norm: RMSNorm of each head's query and key before they are turned (Qwen3).
    head_features: of a head; without it hidden / heads, which must be whole.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    tied: bool = False
    rope_theta: float = 5e5
    rope_scaling: float = 1.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False
    head_features: int | None = None
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
        """Features of a head."""
        return self.head_features or self.hidden // self.heads

    @property
    def rotary_features(self) -> int:
        """Of a head: all of them."""
        return self.head_size

    @property
    def attended(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Features of all key heads, and of all value heads."""
        return self.kv_heads * self.head_size
