"""Which links between devices are slower than others? Broadcasts between each two ranks, and among more and more
(colossal-ai, Fig. 10).

    reframe -c suites/pairs.py --system system-ii                the GPUs of a node, linked in pairs
    ci/cluster up --nodes 4 --ranks-per-node 1 --slow-pairs
    reframe -c suites/pairs.py --system vcluster-pairs --repeat 3 -r
    par4d report build                                           a map, on the page of peaks

Which devices are adjacent is in the system's file (node.neighbours).
"""

from statistics import median

import reframe as rfm

import systems
from engine.result.schema.bench import Links
from suites.base import feasible
from suites.base.figures import Figures
from suites.base.links import LinksTest

FEW = 4
"""Nodes that broadcast to each other."""


@rfm.simple_test
class Pairs(LinksTest):
    """Broadcasts between each two devices of a node, and among more and more of them; on a cluster of processors, or of
    nodes of one device, of one rank of each of four nodes.
    """

    descr = "bandwidth between each two ranks"
    tags = {"pairs"}
    usual_nodes, most_ranks_here = 1, 8
    pairs = True

    def fit_partition(self) -> None:
        nodes = feasible.most_nodes(self.system, self.partition)
        between = nodes != 1 and (self.device != "cuda" or self.devices == 1)
        self.ranks_per_node = 1 if between else None
        if between:
            self.num_tasks = self.given_nodes or min(FEW, nodes or FEW)
        else:
            super().fit_partition()

    def figures(self) -> Figures:
        """Return the medians over pairs, of adjacent ones by the system's file and of others, and all ranks' rate."""
        found: Figures = {}
        for sort, rates in by_sort(self.links, self.system).items():
            found[sort] = (median(rates), "B/s")
        return found


def by_sort(links: Links, system: systems.System) -> dict[str, list[float]]:
    """Part the rates of broadcasts: between adjacent ranks, between others, and among all."""
    most = max(len(one.ranks) for one in links.broadcasts)
    found = dict[str, list[float]]()
    for one in links.broadcasts:
        if len(one.ranks) == 2:
            sort = "adjacent" if system.adjacent(one.ranks) else "others"
            found.setdefault(sort, []).append(one.bytes_per_s)
        elif len(one.ranks) == most:
            found["all"] = [one.bytes_per_s]
    return found
