"""Image sets: images in a file on disk.

A folder with header.json, pixels.bin and labels.bin: bytes [N, 3, size, size], and the number of each
image's class in little-endian uint32, nothing else. Where images are of no classes there are no labels. Opening checks
the sizes, so a file that is missing or cut short is found before a job starts.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from engine.data import CHANNELS
from engine.data.prepared import Prepared, RecordFile, check_digests, check_sizes, read_manifest
from engine.data.shuffle import Arrays, Ints, shuffle
from engine.errors import RunError
from engine.schema import Digest, Record

FORMAT: Final = "par4d.images"
PIXELS, LABELS = "pixels.bin", "labels.bin"
LABEL = np.dtype("<u4")


class ImagesOrigin(Record):
    """Folder that was prepared, its files that are pictures, and how many were left out."""

    folder: str
    files: int
    skipped: int


class Header(Record):
    """header.json of an image set. Version 1 had no digests."""

    format: Literal["par4d.images"] = FORMAT
    version: Literal[1, 2] = 2
    size: int = Field(gt=0)
    images: int = Field(gt=0)
    classes: tuple[str, ...]
    """Names of classes, of which a label is the place; none where images have no classes."""
    pixels_sha256: Digest | None = None
    labels_sha256: Digest | None = None
    source: ImagesOrigin

    @model_validator(mode="after")
    def fits(self) -> "Header":
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class is named twice")
        check_digests(self.version, self.digests)
        return self

    @property
    def digests(self) -> dict[str, str | None]:
        """Digests of the files, by name."""
        return {PIXELS: self.pixels_sha256} | ({LABELS: self.labels_sha256} if self.classes else {})


class ImageSet(Prepared[Header]):
    """Prepared images."""

    form = FORMAT
    tokenizer: None = None

    @classmethod
    def open(cls, path: Path) -> "ImageSet":
        """Check the header and the size of both files. Raises UsageError for what is missing or cut short."""
        header = read_manifest(path, FORMAT, Header)
        pixels = header.images * CHANNELS * header.size**2
        labels = {LABELS: header.images * LABEL.itemsize} if header.classes else {}
        check_sizes(path, FORMAT, {PIXELS: pixels, **labels})
        return cls(path, header)

    @property
    def meaning(self) -> dict[str, Any]:
        return {"size": self.header.size, "classes": self.header.classes}

    @property
    def digests(self) -> dict[str, str | None]:
        return self.header.digests

    @property
    def count(self) -> int:
        """Images of an epoch."""
        return self.header.images

    @property
    def classes(self) -> tuple[str, ...]:
        return self.header.classes

    def read(self, seed: int, positions: Ints) -> Arrays:
        """Read pixels [B, 3, size, size], and labels [B] where images have classes.

        Raises RunError for what isn't as the header says.
        """
        numbers = shuffle(seed, positions, self.header.images)
        pixels = {"pixels": np.concatenate([self._pixels.read(number, number + 1) for number in numbers.tolist()])}
        return pixels | {"labels": self._labels[numbers].astype(np.int64)} if self.header.classes else pixels

    @cached_property
    def _pixels(self) -> RecordFile:
        return RecordFile(self.path / PIXELS, np.dtype(np.uint8), (CHANNELS, self.header.size, self.header.size))

    @cached_property
    def _labels(self) -> NDArray[Any]:
        labels, classes = RecordFile(self.path / LABELS, LABEL).read(0, self.header.images), len(self.header.classes)
        if (largest := int(labels.max())) >= classes:
            raise RunError(
                f"{self.path / LABELS} has {largest} as the label of image {int(np.argmax(labels))}, but labels of "
                f"{classes} classes are below that: prepare the image set again."
            )
        return labels
