"""A serial GPT in plain PyTorch: pre-norm blocks of causal attention and a feed-forward, learnt positions.

GPT-NeoX (Black et al. 2022) has rotary positions instead, and attention beside the feed-forward. It knows nothing of
grids. Only its dropout comes from the engine, because a mask that can be reproduced on every grid must be a hash.
"""

import torch
from torch import Tensor, nn

from engine.layers.attention import Attention
from engine.layers.dropout import BatchRows, Dropout
from engine.layers.elementwise import GELU, AddNorm, Rotate
from engine.models.gpt.config import GPTConfig
from engine.models.rotary import rotation
from engine.models.serial import SerialModel


def _norm(shape: GPTConfig) -> nn.Module:
    kind = nn.LayerNorm if shape.norm == "layernorm" else nn.RMSNorm
    return kind(shape.hidden, eps=shape.norm_eps)


class SelfAttention(nn.Module):
    """Multi-head causal attention [B, S, h] -> [B, S, h]; the fused projection's rows are (3, heads, head size)."""

    def __init__(self, shape: GPTConfig) -> None:
        super().__init__()
        self.head_size = shape.head_size
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=shape.bias)
        self.rotate = Rotate()
        self.attend = Attention(causal=True)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """The number of heads follows from the width of qkv's output. rotation: see Rotate."""
        parts = self.qkv(x).unflatten(2, (3, -1, self.head_size)).unbind(2)  # so that their gradients lie as qkv's do
        q, k, v = (part.transpose(1, 2) for part in parts)
        if rotation is not None:
            q, k = self.rotate(q, rotation), self.rotate(k, rotation)
        return self.out(self.attend(q, k, v))


class FeedForward(nn.Module):
    """[B, S, h] -> wide, 4h unless it is given -> [B, S, h] with GELU between."""

    def __init__(self, shape: GPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.hidden, shape.wide, bias=shape.bias)
        self.gelu = GELU("tanh" if shape.activation == "gelu_tanh" else "none")
        self.fc2 = nn.Linear(shape.wide, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Widen, bend, narrow."""
        return self.fc2(self.gelu(x, self.fc1))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); or both of the same x."""

    def __init__(self, shape: GPTConfig, layer: int) -> None:
        super().__init__()
        self.norm1 = _norm(shape)
        self.attention = SelfAttention(shape)
        self.dropout1 = Dropout(shape.dropout, 2 * layer + 1)
        self.norm2 = _norm(shape)
        self.feed_forward = FeedForward(shape)
        self.dropout2 = Dropout(shape.dropout, 2 * layer + 2)
        self.add_norm = AddNorm()
        self.parallel_residual = shape.parallel_residual

    def forward(self, x: Tensor, rows: BatchRows | None, rotation: Tensor | None) -> Tensor:
        """[B, S, h] -> [B, S, h]."""
        x, normed = self.add_norm(x, None, self.norm1)
        attended = self.dropout1(self.attention(normed, rotation), rows)
        if self.parallel_residual:
            return x + attended + self.dropout2(self.feed_forward(self.norm2(x)), rows)
        x, normed = self.add_norm(x, attended, self.norm2)
        return x + self.dropout2(self.feed_forward(normed), rows)


class GPT(SerialModel):
    """Tokens [B, S] -> logits [B, S, V]."""

    def __init__(self, shape: GPTConfig, *, checkpoint_activations: bool = False) -> None:
        super().__init__(shape.task, checkpoint_activations=checkpoint_activations)
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.rows_of_positions, shape.hidden) if shape.rotary is None else None
        self.dropout = Dropout(shape.dropout, 0)
        self.blocks = nn.ModuleList(Block(shape, i) for i in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_BS: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Logits of the next token at every position."""
        x, turn = self.tokens(tokens_BS), None
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens_BS.shape[1], device=tokens_BS.device))
        else:
            turn = rotation(self.shape, tokens_BS.shape[1], x.device, x.dtype)
        x = self.dropout(x, rows)
        for block in self.blocks:
            x = self.run_block(block, x, rows, turn)
        return self.head(self.norm(x))
