"""Serial vision transformer in plain PyTorch (Dosovitskiy et al. 2020): patches of an image and a token for its class
go through pre-norm blocks of attention in all directions.
"""

import torch
from torch import Tensor, nn

from engine.data.dataset import CHANNELS
from engine.layers.counter_random import BatchRows, Dropout
from engine.layers.elementwise import AddNorm
from engine.layers.embedding import Patches
from engine.models.serial import SerialModel
from engine.models.transformer import FeedForward, SelfAttention
from engine.models.vit.config import ViTConfig


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, shape: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.attention = SelfAttention(shape.hidden, shape.head_size, causal=False)
        self.dropout1 = Dropout(shape.dropout, 2 * layer + 1)
        self.norm2 = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape.hidden, shape.wide, shape.activation)
        self.dropout2 = Dropout(shape.dropout, 2 * layer + 2)
        self.add_norm = AddNorm()

    def forward(self, x: Tensor, rows: BatchRows | None) -> Tensor:
        x, normed = self.add_norm(x, None, self.norm1)
        x, normed = self.add_norm(x, self.dropout1(self.attention(normed), rows), self.norm2)
        return x + self.dropout2(self.feed_forward(normed), rows)


class ViT(SerialModel):
    """Vision transformer from pixels [B, 3, image, image] to logits [B, classes]."""

    def __init__(self, shape: ViTConfig) -> None:
        super().__init__(shape.task)
        self.patches = Patches(CHANNELS, shape.patch, shape.hidden)
        self.class_token = nn.Embedding(1, shape.hidden)
        self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.dropout = Dropout(shape.dropout, 0)
        self.blocks = nn.ModuleList(Block(shape, i) for i in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.head = nn.Linear(shape.hidden, shape.classes)

    def begin(self, pixels_BCHW: Tensor, *, rows: BatchRows | None = None) -> Tensor:  # type: ignore[override]
        """Embed patches at their positions, behind the token of the class."""
        x = self.patches(pixels_BCHW)
        numbers = torch.arange(x.shape[1] + 1, device=x.device)
        class_token = self.class_token(numbers[:1]).expand(len(x), -1, -1)
        return self.dropout(torch.cat([class_token, x], dim=1) + self.positions(numbers), rows)

    def end(self, x: Tensor) -> Tensor:
        """Compute logits of an image's class."""
        return self.head(self.norm(x[:, 0]))


SERIAL = ViT
