"""Record of the cluster that `up` writes in /run, from which `status` and `down` know it again."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from virtual_cluster.machine import start_ticks

STATE = Path("/run/par4d-cluster")
HEAD = "head"


@dataclass(frozen=True, slots=True)
class Shape:
    """Wishes of the user. rate: bytes/s of each node's link; link: the rate as the user wrote it."""

    nodes: int
    ranks_per_node: int
    rate: int
    link: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.nodes} nodes of {self.ranks_per_node} ranks with links of {self.link}"


@dataclass(frozen=True, slots=True)
class Process:
    """The first process of the head or of a node. start: tells it from a later one with its number (start_ticks)."""

    pid: int
    start: int

    def lives(self) -> bool:
        return start_ticks(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster that is up, or whose making was broken off. processes: those of the head and the nodes, by name."""

    shape: Shape
    processes: dict[str, Process]

    def whole(self) -> bool:
        """Say whether every node has been started."""
        return len(self.processes) == self.shape.nodes + 1


def save(cluster: Cluster) -> None:
    """Record the cluster in one step."""
    processes = {name: [process.pid, process.start] for name, process in cluster.processes.items()}
    (STATE / "new").write_text(json.dumps({**asdict(cluster.shape), "processes": processes}))
    (STATE / "new").replace(STATE / "state.json")


def load() -> Cluster | None:
    """Say what was recorded; None if `up` did not come to it."""
    try:
        kept = json.loads((STATE / "state.json").read_text())
    except FileNotFoundError:
        return None
    processes = {name: Process(*numbers) for name, numbers in kept.pop("processes").items()}
    return Cluster(Shape(**kept), processes)
