"""Record of the cluster that `up` writes in /run, and `status` and `down` read."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from virtual_cluster.machine import start_ticks

STATE = Path("/run/par4d-cluster")
HEAD = "head"


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a cluster, and the rate of its links."""

    nodes: int
    ranks_per_node: int
    rate: int
    """bytes/s of each node's link"""
    link: str = field(compare=False)
    """the rate as the user wrote it"""
    slow_pairs: bool = False
    """whether links between pairs of nodes are slower"""

    def __str__(self) -> str:
        pairs = ", slower between pairs" if self.slow_pairs else ""
        return f"{self.nodes} nodes of {self.ranks_per_node} ranks with links of {self.link}{pairs}"


@dataclass(frozen=True, slots=True)
class Process:
    """First process of the head or of a node."""

    pid: int
    start: int
    """what tells it from a later one with its number (start_ticks)"""

    def lives(self) -> bool:
        return start_ticks(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster that is up, or whose making was broken off."""

    shape: Shape
    processes: dict[str, Process]
    """of the head and the nodes, by name"""

    def whole(self) -> bool:
        """Say whether every node has been started."""
        return len(self.processes) == self.shape.nodes + 1


def save(cluster: Cluster) -> None:
    """Record the cluster in one step."""
    processes = {name: [process.pid, process.start] for name, process in cluster.processes.items()}
    (STATE / "new").write_text(json.dumps({**asdict(cluster.shape), "processes": processes}))
    (STATE / "new").replace(STATE / "state.json")


def load() -> Cluster | None:
    """Return the recorded cluster; None if `up` was broken off before."""
    try:
        kept = json.loads((STATE / "state.json").read_text())
    except FileNotFoundError:
        return None
    processes = {name: Process(*numbers) for name, numbers in kept.pop("processes").items()}
    return Cluster(Shape(**kept), processes)
