"""All-gather of short texts, and agreement on failures and on what rank 0 says."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed as dist

from engine.comm.contact import Route
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import ContactError, EngineError, RunError, UsageError

NAME_BYTES, REASON_BYTES = 256, 600


def gather_texts(comm: Comm, text: str, most_bytes: int = NAME_BYTES) -> list[str]:
    """Gather a text of every rank, cut to most_bytes, in rank order. Collective."""
    encoded = text.encode()[:most_bytes].ljust(most_bytes, b"\0")
    rows = comm.gather_rows(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.tolist()]


@contextmanager
def together(comm: Comm, failed: str) -> Iterator[None]:
    """Run each rank's part, and go on once all have ended; as long as all goes well a rank sends one byte. Collective.

    Raises RunError on all ranks if any part raised an error, in the words of the first such rank.
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
        rank = failures.index(True)
        reason = gather_texts(comm, _describe(error), REASON_BYTES)[rank]
        raise RunError(f"{failed}: rank {rank}: {reason}") from error


def _describe(error: Exception | None) -> str:
    if isinstance(error, EngineError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(map(str, filter(None, (error.filename, error.strerror)))) + "."
    return f"{type(error).__name__}: {error}"


def broadcast_text(launch: Launch, store: dist.Store, say: Callable[[], str], doing: str, limit: timedelta) -> str:
    """Broadcast the text that say() gives on rank 0.

    store: of all ranks, for this text alone. doing: ends the sentence "rank 1 lost contact with rank 0". Raises the
    UsageError of rank 0 on all ranks, or LostContact where rank 0 says nothing in time.
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
