"""Dropout whose masks are hashes of places in the global batch, so that every grid drops the same."""

import torch
from torch import Tensor, nn

from engine.layers.counter_random import MASK, ODD, BatchRows, key_of, mix, mix_bits, words_of
from engine.layers.passes import Pass

_TOP = 1 << 31


def keep_mask(rows: BatchRows, site: int, places_BS: Tensor, columns: range, p: float) -> Tensor:
    """Make a bool [B, S, len(columns)]: which elements are kept of rows of features, by the rows' places in the global
    batch.
    """
    key = key_of(rows.seed, rows.step, site)
    columns_H = mix(torch.arange(columns.start, columns.stop, device=places_BS.device) + ODD & MASK)
    bits_BSH = mix_bits(words_of(places_BS, key).unsqueeze(2) ^ columns_H.to(torch.int32))
    return bits_BSH.bitwise_xor_(-_TOP) >= int(p * 2**32) - _TOP  # as numbers without a sign compare


class Dropout(nn.Module):
    """Dropout of features of [B, S, H] in training. site: number of this dropout in the network.

    part: of all features, of parts that are H wide.
    """

    def __init__(self, p: float, site: int, part: int = 0) -> None:
        super().__init__()
        self.p, self.site, self.part = p, site, part

    def forward(self, x_BSH: Tensor, at: Pass) -> Tensor:
        """Scale what is kept by 1 / (1 - p). Raises ValueError if it trains without knowing its samples."""
        return self.drop(x_BSH, at, len(at.positions))

    def drop(self, x_BSH: Tensor, at: Pass, length: int) -> Tensor:
        """Do the same with samples of so many rows."""
        if not self.training or self.p == 0:
            return x_BSH
        if at.samples is None:
            raise ValueError("Dropout in training needs the samples of the global batch that it works on.")
        places_BS, width = at.of_stream(at.samples.places(length)), x_BSH.shape[2]
        columns = range(self.part * width, (self.part + 1) * width)
        keep_BSH = keep_mask(at.samples, self.site, places_BS, columns, self.p)
        return (x_BSH * keep_BSH).div_(1 - self.p)


class PixelDropout(Dropout):
    """Dropout of channels of pixels, [B, C, Y, X]."""

    def forward(self, x_BCYX: Tensor, at: Pass) -> Tensor:
        x_BPC = x_BCYX.flatten(2).transpose(1, 2)
        return self.drop(x_BPC, at, x_BPC.shape[1]).transpose(1, 2).reshape_as(x_BCYX)
