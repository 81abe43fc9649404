"""A serial GPT in plain PyTorch: pre-norm blocks of causal attention and a 4h feed-forward, learnt positions.

It knows nothing of grids. Only its dropout comes from the engine, because a mask that can be reproduced on every grid
must be a hash.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.layers.dropout import BatchPosition, Dropout
from engine.models.gpt.config import GPTConfig


def _norm(config: GPTConfig) -> nn.Module:
    return nn.LayerNorm(config.hidden) if config.norm == "layernorm" else nn.RMSNorm(config.hidden, eps=1e-5)


class Attention(nn.Module):
    """Multi-head causal attention [B, S, h] -> [B, S, h]; the fused projection's rows are (3, heads, head size)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_size = config.hidden // config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=config.bias)
        self.out = nn.Linear(config.hidden, config.hidden, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The number of heads follows from the width of qkv's output."""
        q, k, v = self.qkv(x).unflatten(2, (3, -1, self.head_size)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """[B, S, h] -> [B, S, 4h] -> [B, S, h] with GELU between."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden, 4 * config.hidden, bias=config.bias)
        self.fc2 = nn.Linear(4 * config.hidden, config.hidden, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Widen, bend, narrow."""
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: GPTConfig, layer: int, position: BatchPosition) -> None:
        super().__init__()
        self.norm1 = _norm(config)
        self.attention = Attention(config)
        self.dropout1 = Dropout(config.dropout, 2 * layer + 1, position)
        self.norm2 = _norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout2 = Dropout(config.dropout, 2 * layer + 2, position)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, h] -> [B, S, h]."""
        x = x + self.dropout1(self.attention(self.norm1(x)))
        return x + self.dropout2(self.feed_forward(self.norm2(x)))


class GPT(nn.Module):
    """Tokens [B, S] -> logits [B, S, V]; loss() -> the sum of the cross-entropies of all tokens.

    With checkpoint_activations each block keeps only its input and is run again in the backward.
    """

    def __init__(self, config: GPTConfig, *, checkpoint_activations: bool = False) -> None:
        super().__init__()
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        self.position = BatchPosition()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.sequence, config.hidden)
        self.dropout = Dropout(config.dropout, 0, self.position)
        self.blocks = nn.ModuleList(Block(config, i, self.position) for i in range(config.layers))
        self.norm = _norm(config)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        self.criterion = nn.CrossEntropyLoss(reduction="sum")

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        positions = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        x = self.dropout(self.tokens(tokens_BS) + self.positions(positions))
        for block in self.blocks:
            if self.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Sum over tokens of the cross-entropy in nats, a scalar."""
        return self.criterion(self(tokens_BS).flatten(0, 1), targets_BS.flatten())
