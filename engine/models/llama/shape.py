"""The shape of a Llama. No torch in it."""

from dataclasses import dataclass

from engine.errors import UsageError
from engine.models.architecture import check_multiple_of_heads, check_positive


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """hidden must be a multiple of heads, heads of kv_heads. ffn: the width of the feed-forward.

    Each key and value head serves heads / kv_heads query heads. rope_theta: base of the rotary frequencies.
    rope_scaling: by how much the low ones are slowed for sequences beyond 8192 tokens; 1 leaves them.
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
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        check_positive(self)
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
        return self.hidden // self.heads
