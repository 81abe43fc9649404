"""Find which ranks communicate with which when bandwidths are measured (axonn-sc24 V-B, case 1). No torch in it."""

from collections.abc import Hashable, Sequence


def nodes_of(hosts: Sequence[Hashable]) -> list[list[int]]:
    """Return the ranks of each node, which are those of one host; of all nodes as many as the smallest has.

    >>> nodes_of(["a", "b", "a", "b", "a"])
    [[0, 2], [1, 3]]
    """
    nodes = [[rank for rank, of in enumerate(hosts) if of == host] for host in dict.fromkeys(hosts)]
    fewest = min(map(len, nodes))
    return [ranks[:fewest] for ranks in nodes]


def pairs(devices: int) -> list[tuple[int, int]]:
    """Return every (G0, G1) that fits on a node of so many devices, G1 being of two ranks at least.

    >>> pairs(4)
    [(1, 2), (1, 3), (1, 4), (2, 2)]
    """
    return [(g0, g1) for g0 in range(1, devices // 2 + 1) for g1 in range(2, devices // g0 + 1)]


def outer_groups(ranks: Sequence[int], g0: int, g1: int) -> list[tuple[int, ...]]:
    """Return groups of g1 ranks that are g0 apart; ranks that make up no g0 groups any more are in none.

    >>> outer_groups(range(5), 2, 2)
    [(0, 2), (1, 3)]
    """
    block = g0 * g1
    starts = range(0, len(ranks) - block + 1, block)
    return [tuple(ranks[start + first : start + block : g0]) for start in starts for first in range(g0)]
