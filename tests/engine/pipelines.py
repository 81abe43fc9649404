"""Pipelines to be simulated: all schedules, and times of tasks that are equal, slow on one stage or random by seed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from engine.overlap.tasks import Direction, Ready, StageTask, StepSchedule, TaskOrder
from engine.pipeline.registry import NAMES, ScheduleChoice
from engine.pipeline.simulation import PipelineStep, Times, Transit, play
from engine.result.metrics import idle_share


def make(name: str, limit: int | None = None, cap: int | None = None, chunks: int | None = None) -> StepSchedule:
    """A schedule by its name and what is set of it."""
    return ScheduleChoice(name, limit, cap, chunks).make()


LATENCY_S = 0.1
SCHEDULES: dict[str, StepSchedule] = {
    **{name: make(name) for name in NAMES if name not in ("message-driven-zb", "interleaved")},
    "message-driven 3": make("message-driven", limit=3),
    "message-driven-zb": make("message-driven-zb"),
    "message-driven-zb 1": make("message-driven-zb", limit=1),
    "message-driven-zb 7, 2": make("message-driven-zb", limit=7, cap=2),
    "interleaved 2": make("interleaved"),
    "interleaved 3": make("interleaved", chunks=3),
}
DYNAMIC = [name for name in SCHEDULES if name.startswith("message")]


def varied_times(
    schedule: StepSchedule, stages: int, passes: int, *, slow: int | None = None, jitter: float = 0.0, seed: int = 0
) -> Times:
    """Times with a stage that is slower by 20 %; tasks and messages take longer by a random part up to jitter."""
    shape = len(Direction), stages, passes, schedule.chunks
    works, ways = 1 + jitter * np.random.default_rng(seed).random((2, *shape))
    numbers = {direction: number for number, direction in enumerate(Direction)}

    def of(some: np.ndarray, stage: int, task: StageTask, direction: Direction) -> float:
        return float(some[numbers[direction], stage, task.number, task.chunk])

    def work_s(stage: int, task: StageTask) -> float:
        time_s = of(works, stage, task, task.direction)
        if task.direction is Direction.BACKWARD and not schedule.deferring:
            time_s += of(works, stage, task, Direction.WEIGHT)
        return time_s * (1.2 if stage == slow else 1.0) / schedule.chunks

    return Times(work_s, lambda stage, task: Transit(0.0, LATENCY_S * of(ways, stage, task, task.direction)))


PASSES = 16
CASES = {"quiet": (False, 0.0), "slow": (True, 0.0), "jitter": (False, 0.4), "both": (True, 0.4)}
"""Whether the stage in the middle is slow, and the jitter."""
SEEDS = 8


@cache
def stepped(choice: ScheduleChoice, stages: int, case: str) -> list[PipelineStep]:
    """Steps of PASSES micro-batches in a case, one for each seed."""
    schedule, (slow, jitter) = choice.make(), CASES[case]
    each = [
        varied_times(schedule, stages, PASSES, slow=stages // 2 if slow else None, jitter=jitter, seed=seed)
        for seed in range(SEEDS if jitter else 1)
    ]
    return [play(schedule, stages, PASSES, times) for times in each]


def idle(step: PipelineStep, stage: int) -> float:
    """The part of the step in which a stage stands still."""
    return idle_share(step.time_s - step.busy_s[stage], step.time_s)


def kept(step: PipelineStep, stage: int) -> tuple[int, int, int]:
    """The most passes of a stage whose backward was to come, of those whose weight task alone was, and of both."""
    done: Counter[Direction] = Counter()
    directions = [played.task.direction for played in step.played if played.stage == stage]
    found = []
    for direction in directions:
        done[direction] += 1
        held = done[Direction.FORWARD] - done[Direction.BACKWARD]
        pending = done[Direction.BACKWARD] - done[Direction.WEIGHT] if Direction.WEIGHT in directions else 0
        found.append((held, pending, held + pending))
    most_held, most_pending, most = map(max, zip(*found, strict=True))
    return most_held, most_pending, most


def wild_times(seed: int) -> Times:
    """Every task and message takes anything from 0.001 to 1000."""
    rng = np.random.default_rng(seed)

    def wild() -> float:
        return float(10 ** rng.uniform(-3, 3))

    return Times(lambda stage, task: wild(), lambda stage, task: Transit(wild(), wild()))


@dataclass
class Watched:
    """Order that may give a task only if it is ready, unless the order is known."""

    order: TaskOrder

    @property
    def known(self) -> Sequence[StageTask]:
        return self.order.known

    @property
    def left(self) -> int:
        return self.order.left

    def next(self, ready: Ready) -> StageTask | None:
        is_known = bool(self.order.known)
        task = self.order.next(ready)
        assert task is not None if is_known else task is None or ready(task)
        return task


@dataclass
class WatchedSchedule:
    """Schedule whose orders are watched."""

    schedule: StepSchedule

    def __post_init__(self) -> None:
        self.chunks, self.deferring = self.schedule.chunks, self.schedule.deferring

    def check(self, stages: int, passes: int) -> None:
        self.schedule.check(stages, passes)

    def order(self, stage: int, stages: int, passes: int) -> Watched:
        return Watched(self.schedule.order(stage, stages, passes))

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return self.schedule.live_passes(stage, stages, passes)
