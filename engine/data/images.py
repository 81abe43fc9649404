"""Images on disk, each of a class.

A folder of images holds header.json, pixels.bin with [images, 3, side, side] bytes from 0 to 255, and classes.bin with
a little-endian 16-bit number for each image. Opening checks both files' sizes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.data.dataset import Dataset
from engine.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.data.shuffle import Arrays, Ints

CHANNELS = 3
MOST_CLASSES = 1 << 16


@dataclass(frozen=True, slots=True)
class Images:
    """What a network takes: images of so many pixels along a side, each of a class below classes."""

    side: int
    classes: int

    def synthetic(self) -> Dataset:
        return SyntheticImages(self)

    def open(self, folder: Path) -> Dataset:
        from engine.data.pictures import StoredImages

        stored = StoredImages.open(folder)
        if stored.header.side != self.side:
            raise UsageError(
                f"The images of {folder} are {stored.header.side} pixels wide, the model takes {self.side}: prepare "
                f"them with --size {self.side}, or give --image {stored.header.side}."
            )
        if len(stored.header.classes) > self.classes:
            raise UsageError(
                f"The images of {folder} are of {len(stored.header.classes)} classes, but the model knows "
                f"{self.classes}: give --classes {len(stored.header.classes)}."
            )
        return stored


@dataclass(frozen=True, slots=True)
class SyntheticImages:
    """Uniform random pixels and classes."""

    spec: Images

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """pixels: [B, 3, side, side] of bytes, classes: [B]."""
        import numpy as np

        from engine.data.shuffle import key, mix

        rows_B1 = mix(key(seed, 4) ^ positions.astype(np.uint64))[:, None]
        count = CHANNELS * self.spec.side**2
        columns_1W = np.arange(1, 2 + count // 8, dtype=np.uint64)[None, :]
        words_BW = mix(rows_B1 + columns_1W)
        pixels: NDArray[Any] = words_BW.astype("<u8").view(np.uint8)[:, :count]
        classes = (rows_B1[:, 0] >> np.uint64(32)) * np.uint64(self.spec.classes) >> np.uint64(32)
        shape = (len(positions), CHANNELS, self.spec.side, self.spec.side)
        return {"pixels": pixels.reshape(shape), "classes": classes.astype(np.int64)}
