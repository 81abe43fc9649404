"""Which ranks of a machine share cores: their threads can't all have a core of their own."""

from collections.abc import Sequence

Masks = Sequence[int]


def crowded(masks: Masks, threads: Sequence[int]) -> list[frozenset[int]]:
    """Find the groups of ranks whose cores are fewer than their threads. masks, threads: of each rank; a rank counts
    with as many threads as it has cores at most.

    Ranks whose masks overlap are fine as long as there is room: only what is too few by itself is a group.
    """
    found: list[frozenset[int]] = []
    here = list(range(len(masks)))
    while group := _too_many([masks[rank] for rank in here], [threads[rank] for rank in here]):
        found.append(frozenset(here[place] for place in group))
        here = [rank for rank in here if rank not in found[-1]]
    return found


def _too_many(masks: Masks, threads: Sequence[int]) -> set[int]:
    """Give each thread a core, by augmenting paths; return the ranks that are too many for theirs, none if all fit."""
    owned, free = [0] * len(masks), 0
    for mask in masks:
        free |= mask
    for rank, mask in enumerate(masks):
        for _ in range(min(threads[rank], mask.bit_count())):
            came: dict[int, tuple[int, int]] = {rank: (rank, 0)}
            """From which rank each was reached, and by which of its cores."""
            queue = [rank]
            for at in queue:
                if core := masks[at] & free & -(masks[at] & free):
                    free ^= core
                    _pass_on(owned, came, at, core)
                    break
                for other in range(len(masks)):
                    if other not in came and (shared := masks[at] & owned[other]):
                        came[other] = (at, shared & -shared)
                        queue.append(other)
            else:
                return set(came)
    return set()


def _pass_on(owned: list[int], came: dict[int, tuple[int, int]], at: int, core: int) -> None:
    """Give a core to a rank, which passes one of its own on to the rank from which it was reached, and so on."""
    while True:
        owned[at] |= core
        before, core = came[at]
        if not core:
            return
        owned[at] ^= core
        at = before
