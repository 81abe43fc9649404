"""Rank 0 tells the others a text, or why it refuses, over a store and before there are process groups."""

import json
from collections.abc import Callable
from datetime import timedelta

from torch import distributed as dist

from engine.comm.contact import Line
from engine.comm.launch import Launch
from engine.errors import UsageError


def told_by_first(launch: Launch, store: dist.Store, say: Callable[[], str], doing: str, limit: timedelta) -> str:
    """Give the text that rank 0 alone makes to all ranks.

    store: of all ranks, for this text alone. doing: ends the sentence "rank 1 lost contact with rank 0". Raises the
    UsageError of rank 0 on all of them, or LostContact where rank 0 says nothing in time.
    """
    ranks = range(launch.world_size)
    with Line(launch.rank, doing, ranks[1:] if launch.rank == 0 else ranks[:1], "store").held():
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
