"""Serial vision transformer in plain PyTorch (Dosovitskiy et al. 2020): patches of an image and a token for its class
go through pre-norm blocks of attention in all directions.
"""

from functools import partial

import torch
from torch import Tensor, nn

from engine.data import CHANNELS
from engine.layers.counter_random import BatchRows, Dropout
from engine.layers.embedding import Patches
from engine.models.serial import SerialModel
from engine.models.transformer import PreNormBlock
from engine.models.vit.config import ViTConfig


class ViT(SerialModel):
    """Vision transformer from pixels [B, 3, image, image] to logits [B, classes]."""

    def __init__(self, shape: ViTConfig) -> None:
        super().__init__(shape.task)
        self.patches = Patches(CHANNELS, shape.patch, shape.hidden)
        self.class_token = nn.Embedding(1, shape.hidden)
        self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.dropout = Dropout(shape.dropout, 0)
        norm = partial(nn.LayerNorm, shape.hidden, eps=shape.norm_eps)
        blocks = (PreNormBlock(shape, i, norm, causal=False, bias=True, parallel=False) for i in range(shape.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm()
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
