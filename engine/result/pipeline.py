"""This part of the schema of result.json says how the schedules of a pipeline compare that took turns in one job."""

from engine.result.ratio import Ratio
from engine.result.step import MachineUsage
from engine.schema import Record

PlayedTask = tuple[str, float, float]
"""A task's letter and micro-batch, such as F3, B0 and W12, of a second chunk F3.1; its start and end in seconds."""


class StageTurns(Record):
    """It is one stage under one schedule, as the mean of its counted steps.

    idle_share: the part of a step in which it waits for other stages, at the step's end included. simulated_idle_share:
    what a simulation of all stages finds if each task takes its mean time on its stage, and a message none. task_s:
    that mean time, by direction. most_held, most_pending: passes whose backward, and whose weight task, was still to
    come. tasks: of the step with the median time, from its start, which is that of all stages; absent unless asked for.
    idle_s, work_s: seconds of each counted step, by round, in which it waits for other stages, and in which it carries
    out tasks; absent in results that are older than they.
    """

    idle_share: float
    simulated_idle_share: float
    task_s: dict[str, float]
    most_held: int
    most_pending: int
    tasks: tuple[PlayedTask, ...] = ()
    idle_s: tuple[tuple[float, ...], ...] = ()
    work_s: tuple[tuple[float, ...], ...] = ()


class ScheduleTurns(Record):
    """It is one schedule of a pipeline, which took turns with the others in the same processes.

    auto: whether --schedule auto takes it. rounds_s: seconds of each counted step, by round. over_1f1b: its time by
    that of 1F1B, paired by round; absent for 1F1B itself. idle_share, simulated_idle_share: means over stages.
    simulated_s: of a step; what isn't a task takes as long as was measured. drawn_s: of the step whose tasks the stages
    have. peak_bytes: the most that was allocated on any rank's device while it had its turns; absent on processors,
    where nothing tells. machine: what its ranks take of a machine, where they compute on processors.
    """

    schedule: str
    auto: bool = False
    rounds_s: tuple[tuple[float, ...], ...]
    time_per_iteration_s: float
    over_1f1b: Ratio | None = None
    idle_share: float
    simulated_idle_share: float
    simulated_s: float
    stages: tuple[StageTurns, ...]
    drawn_s: float | None = None
    peak_bytes: int | None = None
    machine: MachineUsage | None = None

    @property
    def label(self) -> str:
        """Name it for a person."""
        return f"{self.schedule} (auto)" if self.auto else self.schedule
