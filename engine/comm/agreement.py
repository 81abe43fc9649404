"""Short texts that ranks give each other, and why one of them could not do its part."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist

from engine.comm.contact import Route
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.comm.meeting import meet
from engine.errors import ContactError, EngineError, RunError, UsageError

NAME_BYTES, REASON_BYTES = 256, 600


def gather_texts(comm: Comm, text: str, most_bytes: int = NAME_BYTES) -> list[str]:
    """Gather a short text of every rank, in rank order; a longer one is cut. Collective."""
    encoded = text.encode()[:most_bytes].ljust(most_bytes, b"\0")
    rows = comm.gather_rows(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
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
    failures = comm.gather_rows(torch.tensor([error is not None])).flatten().tolist()
    if any(failures):
        words = _said(error)
        rank = failures.index(True)
        raise RunError(f"{failed}: rank {rank}: {gather_texts(comm, words, REASON_BYTES)[rank]}") from error


def _said(error: Exception | None) -> str:
    if isinstance(error, OSError) and not isinstance(error, EngineError) and error.strerror:
        return ": ".join(map(str, filter(None, (error.filename, error.strerror)))) + "."
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def broadcast_before_groups(
    launch: Launch, say: Callable[[], str], doing: str, *, meeting_s: float, limit_s: float
) -> str:
    """Give the text that rank 0 alone makes to all ranks, before there are process groups.

    doing: ends the sentence "rank 1 lost contact with rank 0". Raises its UsageError on all of them, NotMet, or
    LostContact where rank 0 says nothing in time.
    """
    store = dist.PrefixStore("said by rank 0", meet(launch, meeting_s))
    return broadcast_text(launch, store, say, doing, timedelta(seconds=limit_s))


def broadcast_text(launch: Launch, store: dist.Store, say: Callable[[], str], doing: str, limit: timedelta) -> str:
    """Give the text that rank 0 alone makes to all ranks.

    store: of all ranks, for this text alone. doing: ends the sentence "rank 1 lost contact with rank 0". Raises the
    UsageError of rank 0 on all of them, or LostContact where rank 0 says nothing in time.
    """
    ranks = range(launch.world_size)
    with Route(launch.rank, doing, ranks[1:] if launch.rank == 0 else ranks[:1], "store").guard():
        if launch.rank == 0:
            try:
                store.set("words", json.dumps({"text": say()}))
            except UsageError as error:
                store.set("words", json.dumps({"refusal": str(error)}))
        store.wait(["words"], limit)
        words: dict[str, str] = json.loads(store.get("words"))
        if "refusal" in words:
            store.set(f"read by {launch.rank}", "")
            if launch.rank == 0:  # the store may end with it
                store.wait([f"read by {rank}" for rank in ranks], limit)
            raise UsageError(words["refusal"])
    return words["text"]
