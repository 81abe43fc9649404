"""Networks take images as squares of pixels, each of one class or of none."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine.data.colours import CHANNELS
from engine.data.dataset import Dataset, Samples, Synthetic
from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.data.shuffle import Arrays, Ints


@dataclass(frozen=True, slots=True)
class Images:
    """It asks for images of so many pixels a side. Every label is below classes. A sample is three channels of
    bytes, and a label; where classes is None, the bytes alone count.
    """

    kind: ClassVar[str] = "images"
    samples: ClassVar[Samples] = "images"
    side: int
    classes: int | None = None

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
        if self.classes is None:
            return images
        if not images.header.classes:
            raise UsageError(
                f"The images of {folder} are of no classes, but the model tells classes apart: prepare a folder with a "
                "subfolder of pictures for each class."
            )
        if (found := len(images.header.classes)) > self.classes:
            raise UsageError(
                f"The images of {folder} are of {found} classes, but the model knows {self.classes}: take a model with "
                f"--classes {found}."
            )
        return images


@dataclass(frozen=True, slots=True)
class SyntheticImages(Synthetic):
    """It makes uniform random bytes, and labels that have nothing to do with them."""

    spec: Images

    def read(self, seed: int, positions: "Ints") -> "Arrays":
        """Make pixels [B, 3, side, side], and labels [B] if there are classes."""
        import numpy as np

        from engine.data.shuffle import key, mix

        side = self.spec.side
        rows_B = mix(key(seed, 3) ^ positions.astype(np.uint64))
        pixels = CHANNELS * side * side
        columns_W = np.arange(-(-pixels // 8), dtype=np.uint64)
        words_BW = mix(mix(rows_B)[:, None] + columns_W)
        bytes_BP = words_BW.astype("<u8").view(np.uint8)[:, :pixels]
        found: Arrays = {"pixels": bytes_BP.reshape(-1, CHANNELS, side, side).copy()}
        if self.spec.classes is None:
            return found
        labels = (mix(rows_B) >> np.uint64(32)) * np.uint64(self.spec.classes) >> np.uint64(32)
        return {**found, "labels": labels.astype(np.int64)}
