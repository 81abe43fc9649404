"""Preparation of images: any folder of pictures, a subfolder a class or of no classes, or CIFAR-10's batches -> an
image set (format: image_set.py).

Classes are numbered in the order of their names. A picture is cut to its middle square and scaled; it stands as its
camera was held (EXIF), grey becomes three equal channels, and what is transparent lies on white. Everything is written
to a temporary folder beside the target and renamed at the end.

CIFAR-10's binary version (Krizhevsky 2009) is files data_batch_1.bin and so on, of records of a label and 3 x 32 x 32
bytes of colour. Its test batch is no training data, and is left out.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from engine.data import CHANNELS
from engine.data.folder import LeftOut, check_folders, files, replacing
from engine.data.image_set import FORMAT, LABEL, LABELS, PIXELS, Header, ImagesOrigin
from engine.data.prepared import HEADER, KINDS
from engine.errors import UsageError, first_line
from engine.files import check_utf8, digest_of
from engine.output import RENEWED

log = logging.getLogger(__name__)

KIND = KINDS[FORMAT]
SIDE, LARGEST = 224, 4096
PROGRESS_EVERY = 100
UNREADABLE = (Exception,)
"""Pillow raises whatever a file that is damaged, or no picture, leads its readers to."""
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
"""Parts of a data set that hold the same classes, by the names that they usually have."""
SIXTEEN_BITS = ("PNG", "PPM")
"""Pillow makes integers of 16 bits of these formats' deep greys."""
CIFAR_SIDE, CIFAR_CLASSES = 32, 10
CIFAR_RECORD = 1 + CHANNELS * CIFAR_SIDE**2
CIFAR_NAMES = "batches.meta.txt"


def prepare(source: Path, out: Path, size: int | None = None, *, unlabelled: bool = False) -> Header:
    """Turn the pictures under `source` into an image set at `out`, replacing one that is there already.

    size: pixels of a side; by default SIDE, or of batches their own. unlabelled: the pictures are of no classes, in any
    folders. Raises UsageError if there are not two classes with pictures where there are any, if `out` is something
    else than prepared data, or if it can't be written. A file that is no picture is left out, with a warning.
    """
    out = out.resolve()
    check_folders(source, out, KIND)
    batches, left_out = sorted(source.glob("data_batch_*.bin")), LeftOut()
    if size is None:
        size = CIFAR_SIDE if batches else SIDE
    if not 1 <= size <= LARGEST:
        raise UsageError(f"--size is from 1 to {LARGEST} pixels, but {size} was given.")
    if batches and size != CIFAR_SIDE:
        raise UsageError(
            f"Images of CIFAR-10 have {CIFAR_SIDE} pixels a side, but --size {size} was given: leave it out."
        )
    named: dict[str, list[Path]] = {}
    if not batches:
        named = {"": list(files(source, out, left_out))} if unlabelled else _classes(source, out, left_out)
    labels: list[int] = []
    names: tuple[str, ...] = ()
    with replacing(out, KIND) as folder:
        with (folder / PIXELS).open("wb") as file:
            for batch in batches:
                pixels, numbers = read_batch(batch)
                file.write(pixels.tobytes())
                labels += numbers.tolist()
            if named:
                labels = _write(file, source, named, size, left_out)
        if not unlabelled:
            names = _names_of_batches(source) if batches else tuple(named)
            (folder / LABELS).write_bytes(np.array(labels, LABEL).tobytes())
        header = Header(
            size=size,
            images=len(labels),
            classes=names,
            pixels_sha256=digest_of(folder / PIXELS),
            labels_sha256=None if unlabelled else digest_of(folder / LABELS),
            source=ImagesOrigin(
                folder=str(source.resolve()), files=len(batches) or len(labels), skipped=left_out.files
            ),
        )
        left_out.write(folder)
        (folder / HEADER).write_text(header.model_dump_json(indent=1) + "\n")
    return header


def _write(
    file: BinaryIO, source: Path, named: Mapping[str, Sequence[Path]], size: int, left_out: LeftOut
) -> list[int]:
    """Write the pixels of all pictures; return the number of each one's class."""
    labels: list[int] = []
    done, total = 0, sum(map(len, named.values()))
    for label, (name, paths) in enumerate(named.items()):
        before = len(labels)
        for path in paths:
            try:
                pixels = read(path, size)
            except UNREADABLE as error:
                left_out.add(path, f"it can't be read as a picture ({type(error).__name__}: {first_line(error)})")
            else:
                file.write(pixels.tobytes())
                labels.append(label)
            done += 1
            if done % PROGRESS_EVERY == 0 or done == total:
                log.info("%d of %d pictures", done, total, extra=RENEWED)
        if len(labels) == before:
            raise UsageError(f"No file of {source / name} is a picture that can be read.")
    return labels


def read(path: Path, size: int) -> NDArray[np.uint8]:
    """Read a picture's middle square: [3, size, size]. Raises one of UNREADABLE."""
    with warnings.catch_warnings(record=True) as doubts, Image.open(path) as opened:
        warnings.simplefilter("always")
        upright = ImageOps.exif_transpose(opened)
        square = ImageOps.fit(_coloured(upright, opened.format), (size, size), Image.Resampling.BICUBIC)
    for doubt in doubts[:1]:
        log.warning("%s: %s", path, " ".join(str(doubt.message).split()))
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def read_batch(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a batch of CIFAR-10: pixels [N, 3 * 32 * 32], and the numbers of their classes [N].

    Raises UsageError for a file that is cut short or something else.
    """
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from None
    if not len(content) or len(content) % CIFAR_RECORD:
        raise UsageError(
            f"{file} has {len(content)} bytes, which is no number of images of {CIFAR_RECORD} bytes: unpack it again."
        )
    records = content.reshape(-1, CIFAR_RECORD)
    labels = records[:, 0]
    if (largest := int(np.max(labels))) >= CIFAR_CLASSES:
        raise UsageError(f"{file} has an image of class {largest}, but CIFAR-10 has {CIFAR_CLASSES}: unpack it again.")
    return records[:, 1:], labels


def _names_of_batches(folder: Path) -> tuple[str, ...]:
    """Name CIFAR-10's classes in the order of their numbers, or by these where no file has the names."""
    names = (folder / CIFAR_NAMES).read_text().split() if (folder / CIFAR_NAMES).is_file() else []
    return tuple(names) if len(names) == CIFAR_CLASSES else tuple(map(str, range(CIFAR_CLASSES)))


def _coloured(image: Image.Image, opened_as: str | None) -> Image.Image:
    """Convert a picture to red, green and blue. opened_as: its format. Raises ValueError for one that has no white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and opened_as in SIXTEEN_BITS):
        deep: NDArray[Any] = np.asarray(image)
        image = Image.fromarray((deep >> 8).astype(np.uint8))  # Pillow would clip all that is brighter than 255
    elif image.mode in ("I", "F"):
        raise ValueError("it has numbers of 32 bits, and says of none that it is white")
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        white = Image.new("RGBA", shown.size, "white")
        image = Image.alpha_composite(white, shown)
    return image.convert("RGB")


def _classes(source: Path, out: Path, left_out: LeftOut) -> dict[str, list[Path]]:
    """List the files of each class, by its name. Raises UsageError unless there are two, none of which is empty."""
    folders: list[Path] = []
    for path in sorted(source.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            left_out.add(path, "it is no class's folder" if not path.is_dir() else "it is hidden")
        elif path.resolve() != out:
            folders.append(path)
    if len(folders) < 2:
        raise UsageError(
            f"The folder {source} has {len(folders)} subfolder{'s' * (len(folders) != 1)}, but each is a class, of "
            "which at least two are to be told apart: sort its pictures into subfolders, or give --unlabelled."
        )
    if all(folder.name.lower() in SPLITS for folder in folders):
        raise UsageError(
            f"The folders {' and '.join(folder.name for folder in folders)} of {source} are parts of a data set, no "
            f"classes: give one as --source, such as {folders[-1]}."
        )
    for folder in folders:
        check_utf8("A class's folder", folder)
    classes = {folder.name: list(files(folder, out, left_out)) for folder in folders}
    for name, paths in classes.items():
        if not paths:
            raise UsageError(f"The folder {source / name} of a class is empty: fill it with pictures, or remove it.")
    return classes
