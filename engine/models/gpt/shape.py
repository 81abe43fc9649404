"""The shape of a GPT. No torch in it."""

from dataclasses import dataclass

from engine.errors import UsageError
from engine.models.architecture import check_multiple_of_heads, check_positive


@dataclass(frozen=True, slots=True)
class GPTShape:
    """hidden must be a multiple of heads; the feed-forward's width is 4 * hidden."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    bias: bool = True
    tied: bool = False
    norm: str = "layernorm"
    dropout: float = 0.0
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        check_positive(self)
        check_multiple_of_heads(self.hidden, self.heads)
        if self.norm not in ("layernorm", "rmsnorm"):
            raise UsageError(f"A model's norm is layernorm or rmsnorm, but {self.norm!r} was given.")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"Dropout is a probability from 0 to below 1, but {self.dropout} was given.")
