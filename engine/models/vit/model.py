"""Serial vision transformer in plain PyTorch (Dosovitskiy et al. 2020): patches of an image and a token for its class
go through pre-norm blocks of attention in all directions.
"""

from functools import partial

import torch
from torch import Tensor, nn

from engine.data import CHANNELS
from engine.layers.counter_random import BatchRows
from engine.layers.dropout import Dropout
from engine.layers.embedding import Patches
from engine.layers.passes import Pass
from engine.layers.redistribute import Enter, Leave
from engine.models.serial import SerialModel
from engine.models.transformer import PreNormBlock
from engine.models.vit.config import ViTConfig


class ViT(SerialModel):
    """Vision transformer from pixels [B, 3, image, image] to logits [B, classes]."""

    def __init__(self, shape: ViTConfig) -> None:
        super().__init__(shape.task)
        self.shape = shape
        self.patches = Patches(CHANNELS, shape.patch, shape.hidden)
        self.class_token = nn.Embedding(1, shape.hidden)
        self.positions = nn.Embedding(shape.sequence, shape.hidden)
        self.enter, self.leave = Enter(), Leave()
        self.dropout = Dropout(shape.dropout, 0)
        norm = partial(nn.LayerNorm, shape.hidden, eps=shape.norm_eps)
        blocks = (PreNormBlock(shape, i, norm, causal=False, bias=True, parallel=False) for i in range(shape.layers))
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm()
        self.head = nn.Linear(shape.hidden, shape.classes)

    def record(self, first: Tensor, samples: BatchRows | None) -> Pass:
        """Make the record of a pass of images, whose tokens are the class's and the patches."""
        return Pass(torch.arange(self.shape.sequence, device=first.device), len(first), samples, self.own_rows)

    def begin(self, pixels_BCHW: Tensor, *, at: Pass) -> Tensor:  # type: ignore[override]
        """Embed patches at their positions, behind the token of the class."""
        x = self.patches(pixels_BCHW)
        class_token = self.class_token(at.positions[:1]).expand(len(x), -1, -1)
        x = torch.cat([class_token, x], dim=1) + self.positions(at.positions)
        return self.dropout(self.enter(x, at), at)

    def end(self, x: Tensor, at: Pass) -> Tensor:
        """Compute logits of an image's class."""
        return self.head(self.norm(self.leave(x, at)[:, 0]))


SERIAL = ViT
