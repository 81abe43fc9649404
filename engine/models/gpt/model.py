"""A serial GPT in plain PyTorch: pre-norm blocks of causal attention and a 4h feed-forward, learnt positions.

It knows nothing of grids. Only its dropout comes from the engine, because a mask that can be reproduced on every grid
must be a hash.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.dropout import BatchRows, Dropout
from engine.models.gpt.shape import GPTShape
from engine.models.serial import SerialModel


def _norm(shape: GPTShape) -> nn.Module:
    return nn.LayerNorm(shape.hidden) if shape.norm == "layernorm" else nn.RMSNorm(shape.hidden, eps=1e-5)


class Attention(nn.Module):
    """Multi-head causal attention [B, S, h] -> [B, S, h]; the fused projection's rows are (3, heads, head size)."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.head_size = shape.hidden // shape.heads
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=shape.bias)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The number of heads follows from the width of qkv's output."""
        q, k, v = self.qkv(x).unflatten(2, (3, -1, self.head_size)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """[B, S, h] -> [B, S, 4h] -> [B, S, h] with GELU between."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden, 4 * shape.hidden, bias=shape.bias)
        self.fc2 = nn.Linear(4 * shape.hidden, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Widen, bend, narrow."""
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, shape: GPTShape, layer: int) -> None:
        super().__init__()
        self.norm1 = _norm(shape)
        self.attention = Attention(shape)
        self.dropout1 = Dropout(shape.dropout, 2 * layer + 1)
        self.norm2 = _norm(shape)
        self.feed_forward = FeedForward(shape)
        self.dropout2 = Dropout(shape.dropout, 2 * layer + 2)

    def forward(self, x: Tensor, rows: BatchRows | None) -> Tensor:
        """[B, S, h] -> [B, S, h]."""
        x = x + self.dropout1(self.attention(self.norm1(x)), rows)
        return x + self.dropout2(self.feed_forward(self.norm2(x)), rows)


class GPT(SerialModel):
    """Tokens [B, S] -> logits [B, S, V]."""

    def __init__(self, shape: GPTShape, *, checkpoint_activations: bool = False) -> None:
        super().__init__(checkpoint_activations=checkpoint_activations)
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.dropout = Dropout(shape.dropout, 0)
        self.blocks = nn.ModuleList(Block(shape, i) for i in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_BS: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Logits of the next token at every position."""
        positions = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        x = self.dropout(self.tokens(tokens_BS) + self.positions(positions), rows)
        for block in self.blocks:
            x = self.run_block(block, x, rows)
        return self.head(self.norm(x))
