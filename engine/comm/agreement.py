"""Ranks tell each other short texts here, and why one of them could not do its part."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.comm.funnel import Comm
from engine.errors import ContactError, EngineError, RunError

NAME_BYTES, REASON_BYTES = 256, 600


def texts(comm: Comm, text: str, most_bytes: int = NAME_BYTES) -> list[str]:
    """Gather a short text of every rank, in rank order; a longer one is cut. Collective."""
    encoded = text.encode()[:most_bytes].ljust(most_bytes, b"\0")
    rows = comm.everyone(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.tolist()]


@contextmanager
def together(comm: Comm, failed: str) -> Iterator[None]:
    """Go on once every rank has done its part. Collective; as long as all goes well a rank says one byte.

    Raises RunError on all ranks if any part raised an error: failed, then the first such rank and its own words.
    """
    error: Exception | None = None
    try:
        yield
    except ContactError:  # the others see it too
        raise
    except Exception as own:
        error = own
    failures = comm.everyone(torch.tensor([error is not None])).flatten().tolist()
    if any(failures):
        words = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        rank = failures.index(True)
        raise RunError(f"{failed}: rank {rank}: {texts(comm, words, REASON_BYTES)[rank]}") from error
