"""Runner of a step's tasks on one rank: forwards, backwards and weight gradients of all micro-batches.

A network that isn't cut runs the same way, without messages.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.comm.collective import Kind
from engine.grid import CUTTING_STAGES, HOLDING, Axis
from engine.layers.counter_random import BatchRows
from engine.models.serial import State
from engine.overlap.tasks import ONE_BY_ONE, Direction, StageTask, StepSchedule, TaskOrder, receiver, takes_message
from engine.parallel.link import Shapes, StageLink, device_waits
from engine.parallel.model import ParallelModel
from engine.pipeline.simulation import Replayed, equal_times
from engine.tensor_mode import Side

MicroBatch = tuple[BatchRows | None, Mapping[str, Tensor]]
"""Rows of the global batch, and the network's inputs of them."""
Mark = Callable[[str], None]


class Leave(torch.autograd.Function):
    """End of the graph of a stage whose outputs have been sent, so that only what the backward needs is kept of it.

    The gradients of the outputs are in box when its backward begins.
    """

    @staticmethod
    def forward(ctx: Any, box: list[Tensor], *outputs: Tensor) -> Tensor:
        ctx.box = box
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None, *ctx.box)
        ctx.box.clear()
        return gradients


@dataclass(frozen=True, slots=True)
class _Pass:
    entered: list[Tensor]
    """inputs from the stage before; none of the first"""
    left: Tensor
    """the loss, or Leave's output"""
    box: list[Tensor]


class Runner:
    def __init__(self, model: ParallelModel, schedule: StepSchedule = ONE_BY_ONE) -> None:
        self.model, self.schedule = model, schedule
        self._comm, self._cut = model.comm, model.cut
        self._stage = self._comm.coords[CUTTING_STAGES]
        self._link: StageLink | None = None
        self._warm: list[StepSchedule] = []
        self._held: dict[tuple[int, int], _Pass] = {}
        self.most_held = self.most_pending = 0
        """most passes of the last step whose backward was to come, and whose weight task was"""

    def run(self, micro_batches: Sequence[MicroBatch], divisor: float | Tensor, mark: Mark = lambda _: None) -> Tensor:
        """Carry out all tasks of a step but its end, ParallelModel.finish_step().

        Returns the sum of the losses of this rank's rows, a float64 scalar; 0 but on the last stage. divisor: as
        ParallelModel.loss() takes it. mark: called with the direction of the next task.
        """
        model, passes = self.model, len(micro_batches)
        model.abort_step()
        self._held.clear()
        self.most_held = self.most_pending = pending = 0
        if self._cut.stages > 1:
            self._connect(micro_batches[0][1])
        cold = self._link is not None and self._cold()
        schedule = self._replayed(passes) if cold else self.schedule
        order = schedule.order(self._stage, self._cut.stages, passes)
        deferring, contributing = self.schedule.deferring, passes * self._cut.chunks
        model.schedule.start_step(order.known, contributing=contributing, deferring=deferring)
        if self._link is not None:
            self._link.abort_step()
            self._link.start_step(
                {way: self._arrivals(schedule, way, passes) for way in (Direction.FORWARD, Direction.BACKWARD)},
                ahead=not cold,
            )
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._comm.device)
        for task in self._tasks(order, contributing * (3 if deferring else 2)):
            mark(task.direction.value)
            loss = self._carry_out(task, micro_batches[task.number], divisor)
            if loss is not None:
                loss_sum += loss
            if deferring and task.direction is not Direction.FORWARD:
                pending += 1 if task.direction is Direction.BACKWARD else -1
            self.most_held = max(self.most_held, len(self._held))
            self.most_pending = max(self.most_pending, pending)
        if self._link is not None:
            self._link.finish_step()
        return loss_sum

    def _cold(self) -> bool:
        """Return whether it is the first step under its schedule, on a device that waits for messages.

        While functions are compiled, timed and loaded, and memory is taken, the host waits for all that the device was
        given: for ever, if that is a receive of what another stage makes of what is yet to come from this one. So none
        is posted ahead in that step.
        """
        if not device_waits(self._comm) or self.schedule in self._warm:
            return False
        self._warm.append(self.schedule)
        return True

    def _replayed(self, passes: int) -> StepSchedule:
        """Return what stages of equal tasks do, where the schedule would ask what has come."""
        if self.schedule.order(self._stage, self._cut.stages, passes).known:
            return self.schedule
        return Replayed(self.schedule, self._cut.stages, passes, equal_times(self.schedule))

    def _carry_out(self, task: StageTask, micro_batch: MicroBatch, divisor: float | Tensor) -> Tensor | None:
        """Return the loss of a backward on the last stage."""
        self.model.schedule.start_task(task)
        if task.direction is Direction.FORWARD:
            rows, batch = micro_batch
            self._forward(task, batch, rows, divisor)
        return self._backward(task) if task.direction is Direction.BACKWARD else None

    def _forward(
        self, task: StageTask, batch: Mapping[str, Tensor], rows: BatchRows | None, divisor: float | Tensor
    ) -> None:
        module, box = self.model.module, list[Tensor]()
        entered, output, leaving = self._go_through(task, batch, rows)
        if output is not None:
            left = module.task.loss(module.criterion, output, batch, divisor)
        else:
            left = Leave.apply(box, *leaving)
        self._held[task.number, task.chunk] = _Pass(entered, left, box)

    def _go_through(
        self, task: StageTask, batch: Mapping[str, Tensor], rows: BatchRows | None
    ) -> tuple[list[Tensor], Tensor | None, Sequence[Tensor]]:
        """Compute a chunk of the network; return what has come of the stage before, the network's output on the last
        chunk, and what was sent to the next one on any other.
        """
        module, cut, entered = self.model.module, self._cut, list[Tensor]()
        at = module.record(next(iter(batch.values())), rows)
        state: State
        if not self._takes_message(task):
            state = module.begin(*module.task.inputs(batch), at=at)
        else:
            assert self._link is not None
            entered = [one.requires_grad_(torch.is_grad_enabled()) for one in self._link.take(task)]
            state = entered[0] if len(entered) == 1 else tuple(entered)
        whole = range(len(module.blocks))
        state = module.run_blocks(state, at, whole if cut.stages == 1 else cut.blocks[self._stage][task.chunk])
        there = receiver(self._stage, task, cut.stages, cut.chunks)
        if there is None:
            return entered, module.end(state, at), ()
        assert self._link is not None
        leaving = [state] if isinstance(state, Tensor) else state
        self._link.send(there[1], [one.detach() for one in leaving])
        return entered, None, leaving

    @torch.no_grad()
    def evaluate(self, micro_batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor]:
        """Sum the losses of this rank's rows, and count what is right of them: float64 scalars, 0 but on the last
        stage. NaN are right where the task counts nothing. Without gradients, dropout or a step.
        """
        model, module, cut = self.model, self.model.module, self._cut
        loss_sum, right = (torch.zeros((), dtype=torch.float64, device=self._comm.device) for _ in range(2))
        tasks = [
            StageTask(Direction.FORWARD, number, chunk)
            for number in range(len(micro_batches))
            for chunk in range(cut.chunks)
        ]
        if cut.stages > 1:
            self._connect(micro_batches[0][1])
            assert self._link is not None
            self._link.abort_step()
            expected = {Direction.FORWARD: [task for task in tasks if self._takes_message(task)]}
            self._link.start_step(expected, ahead=False)  # as in a first step, whose host waits for the device
        module.eval()
        try:
            with model.schedule.evaluating():
                for task in tasks:
                    rows, batch = micro_batches[task.number]
                    _, output, _ = self._go_through(task, batch, rows)
                    if output is not None:
                        found = module.task.right(module.criterion, output, batch)
                        right += torch.nan if found is None else found
                        loss_sum += module.task.loss(module.criterion, output, batch, 1.0)
        finally:
            module.train()
        if self._link is not None:
            self._link.finish_step()
        return loss_sum, right

    def _connect(self, batch: Mapping[str, Tensor]) -> None:
        """Open the link to other stages, once the shapes of micro-batches are known."""
        if self._link is None:
            entering, alike = self.model.entering(batch), self.model.parts.mode.repeating(Side.STREAM)
            self._link = self._open_link(entering, self.model.schedule.compute_dtype, alike)

    def _backward(self, task: StageTask) -> Tensor | None:
        at, takes_message = self._held.pop((task.number, task.chunk)), self._takes_message(task)
        if takes_message:
            assert self._link is not None
            at.box.extend(self._link.take(task))
        at.left.backward()
        there = receiver(self._stage, task, self._cut.stages, self._cut.chunks)
        if there is not None:
            assert self._link is not None
            self._link.send(there[1], [one.grad for one in at.entered if one.grad is not None])
        return None if takes_message else at.left.detach()

    def _takes_message(self, task: StageTask) -> bool:
        return takes_message(self._stage, task, self._cut.stages, self._cut.chunks)

    def _tasks(self, order: TaskOrder, count: int) -> Iterator[StageTask]:
        """Yield the tasks in the order in which this rank carries them out: all ranks of a stage in the same."""
        if order.known or self._link is None:
            while order.left:
                task = order.next(lambda _: True)
                assert task is not None
                yield task
            return
        comm, launched = self._comm, deque[torch.cuda.Event]()
        leading = all(comm.coords[axis] == 0 for axis in HOLDING)
        alone = all(comm.grid[axis] == 1 for axis in HOLDING)
        for _ in range(count):
            if comm.device.type == "cuda":
                _keep_pace(comm.device, launched)
            task = self._next(order) if leading else None
            yield task if task is not None and alone else self._agreed(task)

    def _next(self, order: TaskOrder) -> StageTask:
        assert self._link is not None
        while (task := order.next(self._link.ready)) is None:
            self._link.wait()
        return task

    def _agreed(self, task: StageTask | None) -> StageTask:
        """Take the task that the stage's first rank has chosen, from the one at coordinate 0 of each axis."""
        comm = self._comm
        numbers = [0, 0, 0] if task is None else [list(Direction).index(task.direction), task.number, task.chunk]
        message = torch.tensor(numbers, dtype=torch.int64, device=comm.device)
        sent = []
        for place, axis in enumerate(HOLDING):
            if any(comm.coords[later] for later in HOLDING[place + 1 :]):
                continue
            if comm.coords[axis] == 0:
                sent += [comm.issue(Kind.SEND, axis, message, peer=peer) for peer in range(1, comm.grid[axis])]
            else:
                comm.issue(Kind.RECV, axis, message, peer=0).wait(unavoidable=True)
        for handle in sent:
            handle.wait()
        direction, number, chunk = message.tolist()
        return StageTask(list(Direction)[direction], number, chunk)

    def _open_link(self, entering: Sequence[Shapes], dtype: torch.dtype, alike: Sequence[Axis]) -> StageLink:
        return StageLink(self._comm, entering, dtype, alike)

    def _arrivals(self, schedule: StepSchedule, direction: Direction, passes: int) -> list[StageTask]:
        """List the tasks of this stage for which messages come, in the order in which its neighbour sends them."""
        cut, forward = self._cut, direction is Direction.FORWARD
        neighbour = (self._stage + (-1 if forward else 1)) % cut.stages
        known = schedule.order(neighbour, cut.stages, passes).known
        done = [task for task in known if task.direction is direction] or [
            StageTask(direction, number) for number in range(passes)
        ]
        there = (receiver(neighbour, task, cut.stages, cut.chunks) for task in done)
        return [found[1] for found in there if found is not None and found[0] == self._stage]


def _keep_pace(device: torch.device, launched: deque[torch.cuda.Event]) -> None:
    """Have the host choose a task no sooner than the device begins the one before, as it knows more then; later the
    device would stand still. launched: events between the tasks.
    """
    launched.append(torch.cuda.current_stream(device).record_event())
    if len(launched) > 1:
        launched.popleft().synchronize()
