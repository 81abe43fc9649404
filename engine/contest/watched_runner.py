"""Runner that notes when each of its tasks began and ended, and may be made slower on purpose.

Between its tasks a stage waits for a message, in a phase of the step of its own. What makes it slower is asleep before
a task's message leaves, or at the end of a task that sends none, so that it takes the stage's time as work does.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.contest.schedules import Disturbance
from engine.overlap.tasks import Direction, StepSchedule, Task
from engine.parallel.link import Shapes, StageLink
from engine.parallel.model import ParallelModel
from engine.parallel.runner import Mark, MicroBatch, Runner

BETWEEN = "message"
"""Phase of a step between tasks."""


class Carried(NamedTuple):
    """Task that was carried out, in seconds from the start of the step."""

    task: Task
    start_s: float
    end_s: float


def carried_out(tasks: Iterable[Task], marks: Sequence[tuple[str, float]]) -> list[Carried]:
    """Say when a step's tasks ran. tasks: in their order. marks: the step's phases with their starts."""
    begun = next(place for place, (name, _) in enumerate(marks) if name == BETWEEN)
    spans = [(start, end) for (name, start), (_, end) in pairwise(marks[begun:]) if name in list(Direction)]
    return [Carried(task, *span) for task, span in zip(tasks, spans, strict=True)]


class WatchedRunner(Runner):
    """Driver of a model's steps by a schedule that may change between them.

    tasks: of the last step, in their order. seed: of the delays, which are the same for all ranks of a stage.
    """

    def __init__(self, model: ParallelModel, schedule: StepSchedule, disturbance: Disturbance, seed: int) -> None:
        super().__init__(model, schedule)
        self.tasks: list[Task] = []
        self._seed = seed
        self._steps = 0
        self._delays_s = disturbance.delays_s
        self._slow_by = disturbance.slow_by if self._stage == disturbance.slow_stage else 0.0
        self._mark: Mark = lambda _: None
        self._working = False
        self._began_s = 0.0

    def run(self, micro_batches: Sequence[MicroBatch], divisor: float | Tensor, mark: Mark = lambda _: None) -> Tensor:
        """Carry out all tasks of a step (Runner.run)."""
        self._mark, self.tasks, self._steps = mark, [], self._steps + 1
        mark(BETWEEN)
        return super().run(micro_batches, divisor)

    def _carry_out(self, task: Task, micro_batch: MicroBatch, divisor: float | Tensor) -> Tensor | None:
        self.tasks.append(task)
        if not self._takes_message(task):
            self._begin(task)
        loss = super()._carry_out(task, micro_batch, divisor)
        if self._working:  # it sent nothing
            self._slow_down()
        self._mark(BETWEEN)
        return loss

    def _open_link(self, entering: Sequence[Shapes]) -> StageLink:
        dtype = self.model.schedule.compute_dtype
        return _WatchedLink(self._comm, entering, dtype, taken=self._begin, leaving=self._hold_back)

    def _begin(self, task: Task) -> None:
        """Begin the work on a task, whose message is there."""
        self._mark(task.direction.value)
        self._working, self._began_s = True, self._now() if self._slow_by else 0.0

    def _slow_down(self) -> None:
        self._working = False
        if self._slow_by:
            time.sleep(self._slow_by * (self._now() - self._began_s))

    def _hold_back(self, task: Task) -> None:
        """Let time pass before a task's message leaves."""
        self._slow_down()
        if self._delays_s:
            self._now()
            drawing = random.Random(f"{self._seed} {self._steps} {self._stage} {task}")
            time.sleep(drawing.uniform(0.0, self._delays_s))

    def _now(self) -> float:
        """Give the time, once all that was computed is done; receives may be posted, for what is to come."""
        if self._comm.device.type == "cuda":
            torch.cuda.current_stream(self._comm.device).synchronize()
        return time.perf_counter()


class _WatchedLink(StageLink):
    """Link that calls when a task's message has come, and when one is to leave."""

    def __init__(
        self,
        comm: Comm,
        entering: Sequence[Shapes],
        dtype: torch.dtype,
        *,
        taken: Callable[[Task], None],
        leaving: Callable[[Task], None],
    ) -> None:
        super().__init__(comm, entering, dtype)
        self._taken, self._leaving = taken, leaving

    def take(self, task: Task) -> list[Tensor]:
        content = super().take(task)
        self._taken(task)
        return content

    def send(self, task: Task, contents: Sequence[Tensor]) -> None:
        self._leaving(task)
        super().send(task, contents)
