"""BERT as an Architecture."""

from dataclasses import dataclass
from typing import ClassVar

from engine.data.dataset import Text
from engine.models.architecture import EvenHeads, check_even_heads, check_positions
from engine.models.network import Network, Section
from engine.models.operations import ONTO_STREAM, Activation, Attention, Linear, Norm, Redistribute, Table
from engine.models.tasks import SEGMENTS, MaskedToken


@dataclass(frozen=True, slots=True)
class BertConfig(EvenHeads):
    """BERT, whose attention heads, feed-forward's width and vocabulary x splits."""

    family: ClassVar[str] = "bert"
    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    ffn: int | None = None
    positions: int | None = None
    """rows of the table of positions, where there are more than a sequence has"""
    dropout: float = 0.0
    norm_eps: float = 1e-12
    activation: str = "gelu"
    padding: int | None = None
    """token from whose places its row of the table learns nothing"""
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        check_even_heads(self)
        check_positions(self.sequence, self.positions)

    @property
    def rows_of_positions(self) -> int:
        return self.positions or self.sequence

    def network(self) -> Network:
        """List the operations. Norms come after the residual sums. Before the logits a product whose result x splits
        goes back to the stream.

        Initial values are of a normal distribution of standard deviation 0.02 (Devlin et al. cut it off at two).
        """
        h, heads = self.hidden, self.heads
        tables = (
            Table("tokens", self.vocabulary, h),
            Table("positions", self.rows_of_positions, h, sharded=False),
            Table("segments", SEGMENTS, h, sharded=False),
            Norm("norm", h, "layernorm", bias=True),
        )
        block = (
            Linear("attention.qkv", 3 * h, h, parts=(h, h, h), units=heads, bias=True),
            Attention(heads, heads, self.head_size, causal=False),
            Linear("attention.out", h, h, ONTO_STREAM, units=heads, bias=True),
            Norm("norm1", h, "layernorm", bias=True),
            Linear("feed_forward.fc1", self.wide, h, bias=True),
            Activation("gelu", self.wide),
            Linear("feed_forward.fc2", h, self.wide, ONTO_STREAM, bias=True),
            Norm("norm2", h, "layernorm", bias=True),
        )
        head = (
            Linear("transform", h, h, bias=True),
            Activation("gelu", h),
            Redistribute(h),
            Norm("head_norm", h, "layernorm", bias=True),
            Linear("head", self.vocabulary, h, bias=True, tied="tokens"),
        )
        sections = (Section(tables), Section(block, "blocks", self.layers, recomputed=True), Section(head))
        return Network(sections, self.stream)

    @property
    def task(self) -> MaskedToken:
        return MaskedToken(Text(self.vocabulary, self.sequence))
