"""Serial GPT in plain PyTorch: pre-norm blocks of causal attention and a feed-forward, learnt positions.

GPT-NeoX (Black et al. 2022) has rotary positions instead, and attention beside the feed-forward. Dropout alone comes
from the engine, because a mask that can be reproduced on every grid must be a hash.
"""

from torch import Tensor, nn

from engine.layers.dropout import Dropout
from engine.layers.passes import Pass
from engine.models.gpt.config import GPTConfig
from engine.models.serial import SerialModel
from engine.models.transformer import PreNormBlock, rotation


class GPT(SerialModel):
    """GPT from tokens [B, S] to logits [B, S, V]."""

    def __init__(self, shape: GPTConfig) -> None:
        super().__init__(shape.task)
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.rows_of_positions, shape.hidden) if shape.rotary is None else None
        self.dropout = Dropout(shape.dropout, 0)
        self.blocks = nn.ModuleList(
            PreNormBlock(shape, i, self._norm, causal=True, bias=shape.bias, parallel=shape.parallel_residual)
            for i in range(shape.layers)
        )
        self.norm = self._norm()
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def _norm(self) -> nn.Module:
        kind = nn.LayerNorm if self.shape.norm == "layernorm" else nn.RMSNorm
        return kind(self.shape.hidden, eps=self.shape.norm_eps)

    def begin(self, tokens_BS: Tensor, *, at: Pass) -> Tensor:  # type: ignore[override]
        """Embed the tokens at their positions."""
        x = self.tokens(tokens_BS)
        if self.positions is not None:
            x = x + self.positions(at.stream_positions)
        return self.dropout(x, at)

    def beside(self, x: Tensor, at: Pass) -> tuple[object, ...]:
        """Return the record of the pass, and the rotation of queries and keys if positions are rotary."""
        return at, None if self.shape.rotary is None else rotation(self.shape, at.positions, x.dtype)

    def end(self, x: Tensor, at: Pass) -> Tensor:
        """Compute logits of the next token at every position."""
        return self.head(self.norm(x))


SERIAL = GPT
