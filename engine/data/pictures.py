"""`par4d data prepare-images`: any folder of pictures, with a folder for each class -> images of one size (images.py).

Pictures are turned as their EXIF data say, cut to their middle square, and scaled. Everything is written to a temporary
folder beside the target and renamed at the end.
"""

import logging
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from engine.data.folder import check_folders, files, replacing
from engine.data.images import CHANNELS, MOST_CLASSES
from engine.data.manifest import HEADER, KINDS, read_manifest
from engine.data.shuffle import Arrays, Ints, shuffled
from engine.errors import UsageError
from engine.progress import RENEWED
from engine.schema import Record

log = logging.getLogger(__name__)

FORMAT: Final = "par4d.images"
KIND = KINDS[FORMAT]
PIXELS, CLASSES = "pixels.bin", "classes.bin"
NUMBER = np.dtype("<u2")
REPORTED = 100
"""Progress is logged each so many pictures."""


class Header(Record):
    """header.json of prepared images. classes: their names, in the order of their numbers."""

    format: Literal["par4d.images"] = FORMAT
    version: Literal[1] = 1
    side: int = Field(gt=0)
    images: int = Field(gt=0)
    classes: tuple[str, ...] = Field(min_length=2)
    source: str
    skipped: int


class StoredImages:
    """Prepared images, memory-mapped, which each epoch shuffles anew."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header

    @classmethod
    def open(cls, path: Path) -> "StoredImages":
        """Check the header and both files' sizes. Raises UsageError for what is missing or cut short."""
        header = read_manifest(path, FORMAT, Header)
        sizes = {PIXELS: header.images * CHANNELS * header.side**2, CLASSES: header.images * NUMBER.itemsize}
        for name, expected in sizes.items():
            try:
                size = (path / name).stat().st_size
            except OSError as error:
                raise UsageError(f"{path / name} can't be read ({error.strerror}): prepare the images again.") from None
            if size != expected:
                raise UsageError(
                    f"{path / name} has {size} bytes, but its header says {expected}: prepare the images again."
                )
        return cls(path, header)

    def read(self, seed: int, positions: Ints) -> Arrays:
        """pixels: [B, 3, side, side] of bytes, classes: [B]."""
        numbers = shuffled(seed, positions, self.header.images)
        return {"pixels": self._pixels[numbers], "classes": self._classes[numbers].astype(np.int64)}

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        shape = (self.header.images, CHANNELS, self.header.side, self.header.side)
        return np.asarray(np.memmap(self.path / PIXELS, np.uint8, "r", shape=shape))

    @cached_property
    def _classes(self) -> NDArray[np.uint16]:
        return np.fromfile(self.path / CLASSES, NUMBER)


def prepare(source: Path, out: Path, side: int, *, tiles: bool = False) -> Header:
    """Turn the pictures under `source` into images at `out`, replacing images that are there already.

    side: pixels of an image along each side. tiles: cut a picture into as many squares of that size as it has, instead
    of scaling its middle. Raises UsageError if there are no pictures, or only one class, if one that a name calls a
    picture can't be read, if `out` is something other than images, or if it can't be written.
    """
    out = out.resolve()
    check_folders(source, out, KIND)
    if side < 1:
        raise UsageError(f"--size must be at least 1, but {side} was given.")
    pictures, skipped = _survey(source, out)
    classes = sorted(pictures)
    if len(classes) < 2:
        raise UsageError(
            f"{source} has pictures of {len(classes)} classes, but two are the least: give --source a folder with a "
            "folder of pictures for each class."
        )
    if len(classes) > MOST_CLASSES:
        raise UsageError(f"{source} has {len(classes)} classes, but {MOST_CLASSES} are the most.")
    total, done, counts = sum(map(len, pictures.values())), 0, []
    with replacing(out, KIND) as folder:
        with (folder / PIXELS).open("wb") as file:
            for name in classes:
                counts.append(0)
                for path in pictures[name]:
                    for image in _images(path, side, tiles=tiles):
                        file.write(image.tobytes())
                        counts[-1] += 1
                    done += 1
                    if done % REPORTED == 0 or done == total:
                        log.info("%d of %d pictures", done, total, extra=RENEWED)
        np.repeat(np.arange(len(classes)), counts).astype(NUMBER).tofile(folder / CLASSES)
        if 0 in counts:
            raise UsageError(
                f"No picture of {classes[counts.index(0)]} is {side} pixels wide and high: give a smaller --size, or "
                "leave --tiles out."
            )
        header = Header(
            side=side, images=sum(counts), classes=tuple(classes), source=str(source.resolve()), skipped=skipped
        )
        (folder / HEADER).write_text(header.model_dump_json(indent=1) + "\n")
    return header


def _survey(source: Path, out: Path) -> tuple[dict[str, list[Path]], int]:
    """Find the pictures of each class, by their names, and count other files. A class is a folder in source."""
    from PIL import Image

    known = Image.registered_extensions()
    found: dict[str, list[Path]] = {}
    skipped = 0
    for path in files(source, out):
        name, *inside = path.relative_to(source).parts
        if inside and path.suffix.lower() in known:
            found.setdefault(name, []).append(path)
        else:
            skipped += 1
    return found, skipped


def _images(path: Path, side: int, *, tiles: bool) -> Iterator[NDArray[Any]]:
    """Read a picture's images, [3, side, side] of bytes each. Raises UsageError for one that can't be read."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"The picture {path} can't be read ({error}): remove or replace it.") from None
    if not tiles:
        yield np.asarray(ImageOps.fit(picture, (side, side))).transpose(2, 0, 1)
        return
    whole = np.asarray(picture)
    for top in range(0, whole.shape[0] - side + 1, side):
        for left in range(0, whole.shape[1] - side + 1, side):
            yield whole[top : top + side, left : left + side].transpose(2, 0, 1)
