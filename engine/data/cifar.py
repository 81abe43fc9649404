"""CIFAR-10's binary version: files data_batch_1.bin and so on, of records of a label and 3 x 32 x 32 bytes of colour
(Krizhevsky 2009). The test batch is no training data, and is left out.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.data.colours import CHANNELS
from engine.errors import UsageError

SIDE = 32
CLASSES = 10
RECORD = 1 + CHANNELS * SIDE**2
NAMES = "batches.meta.txt"


def batches(folder: Path) -> list[Path]:
    """List the files of a folder that holds them; none of another."""
    return sorted(folder.glob("data_batch_*.bin"))


def classes(folder: Path) -> tuple[str, ...]:
    """Give the names of the classes in the order of their numbers, or the numbers where no file has the names."""
    names = (folder / NAMES).read_text().split() if (folder / NAMES).is_file() else []
    return tuple(names) if len(names) == CLASSES else tuple(map(str, range(CLASSES)))


def read(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a batch: pixels [N, 3 * 32 * 32], and the numbers of their classes [N]. Raises UsageError for a file that is
    cut short or something else.
    """
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from None
    if not len(content) or len(content) % RECORD:
        raise UsageError(
            f"{file} has {len(content)} bytes, which is no number of images of {RECORD} bytes: unpack it again."
        )
    records = content.reshape(-1, RECORD)
    labels = records[:, 0]
    if (largest := int(np.max(labels))) >= CLASSES:
        raise UsageError(f"{file} has an image of class {largest}, but CIFAR-10 has {CLASSES}: unpack it again.")
    return records[:, 1:], labels
