"""Serial BERT in plain PyTorch (Devlin et al. 2018): post-norm blocks of attention in both directions, and a head that
finds masked tokens. Attention itself has no dropout.
"""

from torch import Tensor, nn

from engine.layers.dropout import Dropout
from engine.layers.elementwise import AddNorm
from engine.layers.passes import Pass
from engine.layers.redistribute import Redistribute
from engine.models.bert.config import BertConfig
from engine.models.serial import SerialModel
from engine.models.tasks import SEGMENTS
from engine.models.transformer import FeedForward, SelfAttention, gelu


class Block(nn.Module):
    """x = norm(x + attention(x)), then norm(x + feed_forward(x))."""

    def __init__(self, shape: BertConfig, layer: int) -> None:
        super().__init__()
        self.attention = SelfAttention(shape.hidden, shape.head_size, causal=False)
        self.dropout1 = Dropout(shape.dropout, 2 * layer + 1)
        self.norm1 = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape.hidden, shape.wide, shape.activation)
        self.dropout2 = Dropout(shape.dropout, 2 * layer + 2)
        self.norm2 = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.add_norm = AddNorm()

    def forward(self, x: Tensor, at: Pass) -> Tensor:
        _, x = self.add_norm(x, self.dropout1(self.attention(x, at), at), self.norm1)
        _, x = self.add_norm(x, self.dropout2(self.feed_forward(x), at), self.norm2)
        return x


class Bert(SerialModel):
    """BERT from tokens and segments [B, S] to logits [B, S, V]."""

    def __init__(self, shape: BertConfig) -> None:
        super().__init__(shape.task)
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden, padding_idx=shape.padding)
        self.positions = nn.Embedding(shape.rows_of_positions, shape.hidden)
        self.segments = nn.Embedding(SEGMENTS, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.dropout = Dropout(shape.dropout, 0)
        self.blocks = nn.ModuleList(Block(shape, i) for i in range(shape.layers))
        self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.gelu = gelu(shape.activation)
        self.redistribute = Redistribute()
        self.head_norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.vocabulary)
        self.head.weight = self.tokens.weight

    def begin(self, tokens_BS: Tensor, segments_BS: Tensor, *, at: Pass) -> Tensor:  # type: ignore[override]
        """Embed the tokens of their segments at their positions."""
        x = self.tokens(tokens_BS) + self.segments(at.of_stream(segments_BS))
        return self.dropout(self.norm(x + self.positions(at.stream_positions)), at)

    def end(self, x: Tensor, at: Pass) -> Tensor:
        """Compute logits of the token at every position."""
        return self.head(self.head_norm(self.redistribute(self.gelu(x, self.transform))))


SERIAL = Bert
