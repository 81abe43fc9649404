"""Serial GPT in plain PyTorch: pre-norm blocks of causal attention and a feed-forward, learnt positions.

GPT-NeoX (Black et al. 2022) has rotary positions instead, and attention beside the feed-forward. Dropout alone comes
from the engine, because a mask that can be reproduced on every grid must be a hash.
"""

import torch
from torch import Tensor, nn

from engine.layers.counter_random import BatchRows, Dropout
from engine.layers.elementwise import AddNorm
from engine.models.gpt.config import GPTConfig
from engine.models.serial import SerialModel
from engine.models.transformer import FeedForward, SelfAttention, rotation


def _norm(shape: GPTConfig) -> nn.Module:
    kind = nn.LayerNorm if shape.norm == "layernorm" else nn.RMSNorm
    return kind(shape.hidden, eps=shape.norm_eps)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); or both of the same x."""

    def __init__(self, shape: GPTConfig, layer: int) -> None:
        super().__init__()
        self.norm1 = _norm(shape)
        self.attention = SelfAttention(shape.hidden, shape.head_size, causal=True, bias=shape.bias)
        self.dropout1 = Dropout(shape.dropout, 2 * layer + 1)
        self.norm2 = _norm(shape)
        self.feed_forward = FeedForward(shape.hidden, shape.wide, shape.activation, bias=shape.bias)
        self.dropout2 = Dropout(shape.dropout, 2 * layer + 2)
        self.add_norm = AddNorm()
        self.parallel_residual = shape.parallel_residual

    def forward(self, x: Tensor, rows: BatchRows | None, rotation: Tensor | None) -> Tensor:
        x, normed = self.add_norm(x, None, self.norm1)
        attended = self.dropout1(self.attention(normed, rotation), rows)
        if self.parallel_residual:
            return x + attended + self.dropout2(self.feed_forward(self.norm2(x)), rows)
        x, normed = self.add_norm(x, attended, self.norm2)
        return x + self.dropout2(self.feed_forward(normed), rows)


class GPT(SerialModel):
    """GPT from tokens [B, S] to logits [B, S, V]."""

    def __init__(self, shape: GPTConfig) -> None:
        super().__init__(shape.task)
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.rows_of_positions, shape.hidden) if shape.rotary is None else None
        self.dropout = Dropout(shape.dropout, 0)
        self.blocks = nn.ModuleList(Block(shape, i) for i in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def begin(self, tokens_BS: Tensor, *, rows: BatchRows | None = None) -> Tensor:  # type: ignore[override]
        """Embed the tokens at their positions."""
        x = self.tokens(tokens_BS)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens_BS.shape[1], device=tokens_BS.device))
        return self.dropout(x, rows)

    def beside(self, x: Tensor, rows: BatchRows | None, positions: int) -> tuple[object, ...]:
        """Return the rows, and the rotation of queries and keys if positions are rotary."""
        return rows, None if self.shape.rotary is None else rotation(self.shape, positions, x.device, x.dtype)

    def end(self, x: Tensor) -> Tensor:
        """Compute logits of the next token at every position."""
        return self.head(self.norm(x))


SERIAL = GPT
