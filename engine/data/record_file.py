"""Read records of one size from a file. It isn't mapped: a file that is cut short under a mapping kills its reader."""

import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import RunError


class RecordFile:
    """File of records of one format and shape, opened when it is first read."""

    def __init__(self, path: Path, storage: np.dtype, shape: Sequence[int] = ()) -> None:
        self.path = path
        self._storage, self._shape = storage, tuple(shape)
        self._num_bytes = storage.itemsize * prod(self._shape)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read records [stop - start, *shape]. Raises RunError, naming the file, if it can't be read or ends before."""
        records = np.empty((stop - start, *self._shape), self._storage)
        left, offset = records.reshape(-1).view(np.uint8).data, start * self._num_bytes
        try:
            while left:
                done = os.preadv(self._file, [left], offset)
                if not done:
                    raise RunError(
                        f"{self.path} ends at byte {offset}, though it was whole when it was opened: it was cut short "
                        "meanwhile, so prepare it again."
                    )
                left, offset = left[done:], offset + done
        except OSError as error:
            raise RunError(f"{self.path} can't be read: {error.strerror}.") from error
        return records

    @cached_property
    def _file(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        return descriptor
