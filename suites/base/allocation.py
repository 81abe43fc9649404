"""A test's job takes nodes of an allocation, for some time at most."""

import reframe as rfm
from reframe.core.builtins import loggable, run_after, run_before, variable
from reframe.utility import typecheck as typ

import systems
from systems import schedulers

LONGEST_COLLECTIVE_S, OF_LIMIT_TO_A_COLLECTIVE = 300, 0.25
LONGEST_MEETING_S, OF_LIMIT_TO_MEET = 1200, 0.5
"""Ranks, and sides of a contest, are waited for so many seconds at most, and for such a part of their job's time: NCCL
takes another minute to give up.
"""


class Allocation(rfm.RegressionTestPlugin):
    """A test whose job is one of a system.

    nodes: as many as its ranks fill, and none for what runs beside ReFrame; a test may set it to fill so many.
    fixture_jobs: what its fixtures take, which --describe fills in (launcher.py). canary: whether jobs of the engine
    also run the frozen program (canary.py), behind it.
    """

    nodes = variable(int, value=0, loggable=True)
    fixture_jobs = variable(typ.List[dict], value=[], loggable=False)
    canary = variable(typ.Bool, value=False)

    @property
    def system(self) -> systems.System:
        return systems.load(self.current_system.name)

    @property
    def partition(self) -> systems.Partition:
        """Return the part of the machine that the test runs on; the first one until its setup."""
        every, current = self.system.partitions, self.current_partition
        return next(own for own in every if current is None or own.name == current.name)

    @property
    def ranks_of_a_node(self) -> int | None:
        """Say how many ranks a node has; None for all of them."""
        return None

    @run_after("init", always_last=True)
    @run_before("run")
    def count_nodes(self) -> None:
        """The run counts again, as a test's setup may have asked for fewer ranks."""
        self.nodes = 0 if self.local else -(-self.num_tasks // (self.ranks_of_a_node or self.num_tasks))

    @loggable  # type: ignore[prop-decorator]
    @property
    def time_limit_s(self) -> float:
        """Return the job's own time limit, or that of the partition."""
        return float(systems.seconds(self.partition.time_limit) if self.time_limit is None else self.time_limit)

    @property
    def timeout_options(self) -> list[str]:
        """Time-outs for every command, so that one that hangs says why before its job's time is over."""
        limit_s = schedulers.STANDSTILL_S if self.partition.is_local else self.time_limit_s
        collective_s = min(LONGEST_COLLECTIVE_S, int(limit_s * OF_LIMIT_TO_A_COLLECTIVE))
        meeting_s = min(LONGEST_MEETING_S, int(limit_s * OF_LIMIT_TO_MEET))
        return ["--timeout", str(collective_s), "--meeting-timeout", str(meeting_s)]

    @loggable  # type: ignore[prop-decorator]
    @property
    def node_hours(self) -> float:
        """Return the most that the job can take."""
        return self.nodes * self.time_limit_s / 3600
