"""Networks take images as squares of pixels, each of one class."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine.data.colours import CHANNELS
from engine.data.dataset import Dataset
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class Images:
    """It asks for images of so many pixels a side. Every label is below classes. A sample is three channels of
    bytes, and a label.
    """

    kind: ClassVar[str] = "images"
    side: int
    classes: int

    def synthetic(self) -> Dataset:
        return SyntheticImages(self)

    def open(self, folder: Path) -> Dataset:
        from engine.data.image_set import ImageSet

        images = ImageSet.open(folder)
        if images.header.size != self.side:
            raise UsageError(
                f"The images of {folder} have {images.header.size} pixels a side, but the model takes {self.side}: "
                f"prepare them with --size {self.side}."
            )
        if (found := len(images.header.classes)) > self.classes:
            raise UsageError(
                f"The images of {folder} are of {found} classes, but the model knows {self.classes}: take a model with "
                f"--classes {found}."
            )
        return images


@dataclass(frozen=True, slots=True)
class SyntheticImages:
    """It makes uniform random bytes, and labels that have nothing to do with them."""

    spec: Images

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Make pixels [B, 3, side, side] and labels [B]."""
        import numpy as np

        from engine.data.shuffle import key, mix

        side, classes = self.spec.side, np.uint64(self.spec.classes)
        rows_B = mix(key(seed, 3) ^ positions.astype(np.uint64))
        pixels = CHANNELS * side * side
        columns_W = np.arange(-(-pixels // 8), dtype=np.uint64)
        words_BW = mix(mix(rows_B)[:, None] + columns_W)
        bytes_BP = words_BW.astype("<u8").view(np.uint8)[:, :pixels]
        return {
            "pixels": bytes_BP.reshape(-1, CHANNELS, side, side).copy(),
            "labels": ((mix(rows_B) >> np.uint64(32)) * classes >> np.uint64(32)).astype(np.int64),
        }
