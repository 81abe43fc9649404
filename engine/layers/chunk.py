"""Cut rows into chunks, so that what is made of one at a time needs little memory. No torch in it."""

from collections.abc import Iterator

CHUNK_BYTES = {"cpu": 2**21, "cuda": 2**28}
"""A processor's second cache holds so much, and so much keeps a GPU busy."""
ALIGNED = 16
"""After so many rows 16 bytes begin anew, whatever a row takes: compiled code copies tensors that begin elsewhere."""


def chunks(rows: int, row_bytes: int, device: str) -> Iterator[slice]:
    """Yield slices of neighbouring rows, of at most CHUNK_BYTES together, but at least one; if many, a multiple of
    ALIGNED.

    >>> list(chunks(5, 2**20, "cpu"))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // row_bytes)
    step -= step % ALIGNED if step > ALIGNED else 0
    return (slice(first, first + step) for first in range(0, rows, step))
