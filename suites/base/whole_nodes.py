"""Links are measured between all devices of whole nodes."""

from reframe.core.builtins import run_after

from suites.base.engine_test import EngineTest
from suites.base.feasible import devices_of_a_node, most_nodes, place_of


class WholeNodes(EngineTest):
    """A test on all devices of some nodes: as many as -S nodes says, or else the usual ones, or all of fewer."""

    usual_nodes: int
    most_ranks_here: int
    """on a machine that isn't a cluster, and whose file has no number of devices"""
    given_nodes = 0

    @run_after("init")
    def take_whole_nodes(self) -> None:
        self.given_nodes = self.nodes
        self.fit_partition()

    def fit_partition(self) -> None:
        most = most_nodes(self.system, self.partition)
        usual = self.usual_nodes if most is None else min(self.usual_nodes, most)
        devices = self.devices or 1
        if self.system.node.devices is None:
            devices = min(devices, self.most_ranks_here)
        self.num_tasks = (self.given_nodes or usual) * devices

    @property
    def devices(self) -> int | None:
        return devices_of_a_node(self.system, self.partition, self.wanted_device)

    def cannot_run(self) -> str | None:
        place = place_of(self.system, self.partition)
        if self.devices is None:
            return f"nothing says how many devices a node of {place} has (node: devices)"
        if self.num_tasks == 1:
            return f"{place} has a single device, which has no other to send to"
        return super().cannot_run()
