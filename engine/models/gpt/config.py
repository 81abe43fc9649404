"""GPT as an Architecture."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from engine.data.dataset import Text
from engine.errors import UsageError
from engine.models.architecture import EvenHeads, check_even_heads, check_positions
from engine.models.network import Network, Section
from engine.models.operations import INITIAL_STD, ONTO_STREAM, Activation, Attention, Linear, Norm, Rotation, Table
from engine.models.tasks import NextToken
from engine.placement import Gaussian


@dataclass(frozen=True, slots=True)
class GPTConfig(EvenHeads):
    """GPT, whose attention heads, feed-forward's width and vocabulary x splits."""

    family: ClassVar[str] = "gpt"
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
    norm_eps: float = 1e-5
    activation: str = "gelu"
    """gelu, or gelu_tanh, its approximation"""
    ffn: int | None = None
    positions: int | None = None
    """rows of the table of positions, where there are more than a sequence has"""
    rotary: int | None = None
    """features of each head that positions turn, instead of such a table"""
    rope_theta: float = 1e4
    """base of the frequencies of rotary positions"""
    parallel_residual: bool = False
    """whether attention and feed-forward both read the block's input (GPT-NeoX)"""
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        check_even_heads(self)
        if self.norm not in ("layernorm", "rmsnorm"):
            raise UsageError(f"A model's norm is layernorm or rmsnorm, but {self.norm!r} was given.")
        if self.activation not in ("gelu", "gelu_tanh"):
            raise UsageError(f"A model's activation is gelu or gelu_tanh, but {self.activation!r} was given.")
        if self.rotary is not None and (self.rotary % 2 or self.rotary > self.head_size):
            raise UsageError(
                f"Rotary positions turn pairs of features, but {self.rotary} of a head's {self.head_size} were given: "
                "an even number up to that is possible."
            )
        check_positions(self.sequence, self.positions)

    @property
    def rows_of_positions(self) -> int:
        return self.positions or self.sequence

    @property
    def rotary_features(self) -> int:
        """Features of a head that positions turn."""
        return self.rotary or 0

    @property
    def rope_scaling(self) -> float:
        """Factor of the frequencies, none of which is slowed."""
        return 1.0

    def network(self) -> Network:
        """List the operations. Initial values are GPT-2's, whose projections onto the residual stream start smaller."""
        h, heads, size, bias = self.hidden, self.heads, self.head_size, self.bias
        onto = Gaussian(INITIAL_STD / sqrt(2 * self.layers))
        kind, centred = self.norm, self.norm == "layernorm"
        positions = [] if self.rotary else [Table("positions", self.rows_of_positions, h, sharded=False)]
        rotation = [Rotation(heads, heads, size, self.rotary)] if self.rotary else []
        block = (
            Norm("norm1", h, kind, bias=centred),
            Linear("attention.qkv", 3 * h, h, parts=(h, h, h), units=heads, bias=bias),
            *rotation,
            Attention(heads, heads, size, by_heads=self.rotary_features not in (0, size)),
            Linear("attention.out", h, h, ONTO_STREAM, units=heads, bias=bias, init=onto),
            Norm("norm2", h, kind, bias=centred, shares_input=self.parallel_residual),
            Linear("feed_forward.fc1", self.wide, h, bias=bias),
            Activation("gelu", self.wide),
            Linear("feed_forward.fc2", h, self.wide, ONTO_STREAM, bias=bias, init=onto),
        )
        head = Linear("head", self.vocabulary, h, tied="tokens" if self.tied else None)
        sections = (
            Section((Table("tokens", self.vocabulary, h), *positions)),
            Section(block, "blocks", self.layers, recomputed=True),
            Section((Norm("norm", h, kind, bias=centred), head)),
        )
        return Network(sections, self.stream)

    @property
    def task(self) -> NextToken:
        return NextToken(Text(self.vocabulary, self.sequence))
