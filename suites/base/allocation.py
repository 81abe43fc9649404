"""Nodes of an allocation that a test's job takes, for some time at most."""

import reframe as rfm
from reframe.core.builtins import loggable, run_after, run_before, variable
from reframe.core.runtime import valid_sysenv_comb
from reframe.utility import typecheck as typ

import systems
from suites.base import feasible
from systems import schedulers

LONGEST_COLLECTIVE_S, OF_LIMIT_TO_A_COLLECTIVE = 300, 0.25
LONGEST_MEETING_S, OF_LIMIT_TO_MEET = 1200, 0.5
"""Ranks, and sides of a contest, are waited for so many seconds at most, and for such a part of their job's time: NCCL
takes another minute to give up.
"""
LIMIT_BY_HAND = "limit_by_hand"


class Allocation(rfm.RegressionTestPlugin):
    """Test whose job is one of a system."""

    valid_systems: list[str]
    nodes = variable(int, value=0, loggable=True)
    """as many as its ranks fill, and none for what runs beside ReFrame; a test may set it to fill so many"""
    cases = variable(typ.List[dict], value=[], loggable=False)
    """costs on each partition, which --describe fills in (listings.py)"""
    fixture_jobs = variable(typ.List[dict], value=[], loggable=False)
    """costs of its fixtures"""
    canary = variable(typ.Bool, value=False)
    """whether jobs of the engine also run the frozen program (canary.py), behind it"""
    limit_by_hand = variable(typ.Bool, value=False)
    """whether -S gives the time limit, which is the user's own affair then"""
    longest_collective_s: float = LONGEST_COLLECTIVE_S
    longest_meeting_s: float = LONGEST_MEETING_S
    oversubscribe = variable(typ.Bool, value=False)
    """whether ranks may share a core of a machine that isn't a cluster"""

    @property
    def system(self) -> systems.System:
        return systems.load(self.current_system.name)

    @property
    def partition(self) -> systems.Partition:
        """Part of the machine that the test case runs on; of a test that isn't a case yet, the first."""
        case = self._case() if self._case else None
        part = self.current_partition or (case and case.partition)
        names = [part.name] if part else [one.rpartition(":")[2] for one in self.valid_systems]
        every = self.system.partitions
        return next((own for own in every if own.name in names), every[0])

    @property
    def wanted_device(self) -> str:
        """Kind of device that the job computes on."""
        return self.system.device.kind

    @property
    def number_format(self) -> str | None:
        """Number format that the job computes in; None for none in particular."""
        return None

    @property
    def started_ranks(self) -> int | None:
        """Number of ranks that the job starts; None where only the test's setup tells."""
        return int(self.num_tasks)

    def per_node(self, ranks: int) -> int | None:
        """Say how many of so many ranks a node gets; None for all of them."""
        return None

    @property
    def ranks_of_a_node(self) -> int | None:
        """Number of ranks of a node; None for all of them."""
        return self.per_node(self.num_tasks)

    @run_after("init", always_last=True)
    def leave_out_other_partitions(self) -> None:
        """Make no test case for a partition whose devices are of another kind than the system's."""
        by_name = {f"{self.system.name}:{own.name}": own for own in self.system.partitions}
        names = [part.fullname for part in valid_sysenv_comb(self.valid_systems, ["*"])]
        self.valid_systems = [
            name for name in names if not feasible.other_kind(self.system, by_name[name], self.wanted_device)
        ]

    @run_after("init", always_last=True)
    @run_before("run")
    def count_nodes(self) -> None:
        """Count again before the run, as a test's setup may have asked for fewer ranks."""
        ranks = self.num_tasks if self.started_ranks is None else self.started_ranks
        self.nodes = 0 if self.local else -(-ranks // (self.per_node(ranks) or ranks))

    def fit_partition(self) -> None:
        """Ask for as many ranks as the partition of the test case has room for, where that is open."""

    def cannot_run(self) -> str | None:
        """Say why the partition can't run the job; None if it can. What runs beside ReFrame takes nothing of it."""
        if self.local or self.started_ranks is None:
            return None
        job = feasible.Job(
            ranks=self.started_ranks,
            ranks_of_a_node=self.per_node(self.started_ranks),
            device=self.wanted_device,
            number_format=self.number_format,
            time_limit_s=None if self.limit_by_hand else self.time_limit_s,
            oversubscribe=self.oversubscribe,
        )
        return feasible.obstacle(self.system, self.partition, job)

    @run_before("setup")
    def take_partition(self) -> None:
        """Fit what is open to the partition that is known now."""
        self.fit_partition()
        self.count_nodes()

    @run_before("setup")
    @run_before("run")
    def skip_what_cannot_run(self) -> None:
        """Ask before setup, and again before the run, as a setup may change the ranks."""
        if reason := self.cannot_run():
            self.skip(reason)

    @loggable  # type: ignore[prop-decorator]
    @property
    def time_limit_s(self) -> float:
        """Time limit of the job, or that of the partition."""
        return float(systems.seconds(self.partition.time_limit) if self.time_limit is None else self.time_limit)

    @property
    def timeout_options(self) -> list[str]:
        """Time-outs for every command, so that one that hangs says why before its job's time is over."""
        limit_s = schedulers.STANDSTILL_S if self.partition.is_local else self.time_limit_s
        collective_s = int(min(self.longest_collective_s, limit_s * OF_LIMIT_TO_A_COLLECTIVE))
        meeting_s = int(min(self.longest_meeting_s, limit_s * OF_LIMIT_TO_MEET))
        return ["--timeout", str(collective_s), "--meeting-timeout", str(meeting_s)]

    @loggable  # type: ignore[prop-decorator]
    @property
    def node_hours(self) -> float:
        """Most that the job can take; of a test that is described, that of the jobs on all of its partitions."""
        if self.cases:
            return float(sum(case["node_hours"] for case in self.cases))
        return self.nodes * self.time_limit_s / 3600
