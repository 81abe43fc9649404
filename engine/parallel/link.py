"""Link to the neighbouring stages, for activations forward and their gradients backward.

Messages of one direction arrive in the order in which they are sent, which the receiver knows: receives are posted
ahead of it. Of ranks that have the same activations each sends a part of them, and the receivers gather the parts.
Behind its content each message has a tail, which names its task: a message that was lost, doubled or exchanged is an
error, not a wrong number.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from engine.comm.backend import Handle
from engine.comm.collective import Kind, Lane
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.grid import CUTTING_STAGES, Axis
from engine.overlap.tasks import Direction, StageTask

POSTED = 2
"""Receives of a direction that are posted ahead."""
POSTED_ON_CUDA = 1
"""The same on CUDA, where a second one would keep its stream and all that shares the hardware queue waiting."""
TAIL_BYTES = 16
LANES = {Direction.FORWARD: Lane.FORWARD, Direction.BACKWARD: Lane.BACKWARD}
NUMBERS = {direction: number for number, direction in enumerate(Direction)}
"""Numbers of directions in a message's tail."""


def device_waits(comm: Comm) -> bool:
    return comm.device.type == "cuda"


Shapes = Sequence[Sequence[int]]
"""Shapes of the tensors of a message."""


class StageLink:
    """Messages of this rank, received and sent.

    entering: shapes of what each chunk of the network takes, stage by stage, and of its gradients. alike: axes along
    which ranks have the same of that.
    """

    def __init__(self, comm: Comm, entering: Sequence[Shapes], dtype: torch.dtype, alike: Sequence[Axis]) -> None:
        self._comm, self._dtype, self._alike = comm, dtype, [axis for axis in alike if comm.grid[axis] > 1]
        self._parts = prod(comm.grid[axis] for axis in self._alike)
        self._part = comm.grid.position(comm.coords, self._alike)
        self._entering = [tuple(map(tuple, shapes)) for shapes in entering]
        self._stage, self._stages = comm.coords[CUTTING_STAGES], comm.grid.stages
        self._from = {
            Direction.FORWARD: (self._stage - 1) % self._stages,
            Direction.BACKWARD: (self._stage + 1) % self._stages,
        }
        self._step = self._ahead = 0
        self._expected: dict[Direction, deque[StageTask]] = {}
        """tasks of messages that have still to be taken, in order"""
        self._unposted: dict[Direction, deque[StageTask]] = {}
        """those of them without a posted receive"""
        self._coming: dict[Direction, deque[tuple[Handle, Tensor]]] = {}
        self._sent: list[Handle] = []
        self._departing: list[Handle] = []
        """sent messages that may still need their memory, for which a whole step's would be too many"""
        self._tails: list[tuple[StageTask, Tensor]] = []

    def start_step(self, expected: Mapping[Direction, Sequence[StageTask]], *, ahead: bool = True) -> None:
        """Begin a step in which messages for these tasks come, in this order. ahead: whether receives are posted before
        a task wants them, without which nothing is known to have come.
        """
        self._ahead = 0 if not ahead else POSTED_ON_CUDA if device_waits(self._comm) else POSTED
        self._step += 1
        self._expected = {direction: deque(tasks) for direction, tasks in expected.items()}
        self._unposted = {direction: deque(tasks) for direction, tasks in expected.items()}
        self._coming = {direction: deque() for direction in expected}
        for direction in expected:
            self._post(direction, self._ahead)

    def ready(self, task: StageTask) -> bool:
        """Return whether a task's message has come, or none has to."""
        if task not in self._expected.get(task.direction, ()):
            return True
        return self._expected[task.direction][0] == task and self._coming[task.direction][0][0].arrived()

    def wait(self) -> None:
        """Wait until any message has come that hasn't been taken."""
        first = [coming[0][0] for coming in self._coming.values() if coming]
        if not first:
            raise RunError("A stage waits, but no message is to come: this is a fault of its schedule.")
        self._comm.wait_any([handle for handle in first if not handle.arrived()] or first)

    def take(self, task: StageTask) -> list[Tensor]:
        """Wait for a task's message, and return its content. Raises RunError for a message that is for another."""
        wanted = self._expected[task.direction].popleft()
        assert wanted == task, f"the schedule wants {task} where {wanted} comes"
        self._post(task.direction, max(1, self._ahead))
        handle, message = self._coming[task.direction].popleft()
        handle.wait(unavoidable=True)
        self._post(task.direction, self._ahead)
        shapes = self._shapes(self._stage, task)
        parts, part_bytes = self._cut(shapes)
        tail = message[part_bytes:]
        if device_waits(self._comm):
            self._tails.append((task, tail.clone()))  # or all messages of a step would be kept for it
        elif not message.is_meta:
            self._check(task, tail)
        part = message[:part_bytes].view(self._dtype)
        whole = part
        for axis in self._alike if parts > 1 else ():
            whole = self._comm.run(Kind.ALL_GATHER, axis, whole)
        ends = [*accumulate(map(prod, shapes))]
        return [whole[end - prod(shape) : end].view(shape) for shape, end in zip(shapes, ends, strict=True)]

    def send(self, task: StageTask, contents: Sequence[Tensor]) -> None:
        """Send the contents to a task of the stage that is next in its direction. They may be changed afterwards."""
        ahead = 1 if task.direction is Direction.FORWARD else -1
        to, lane = (self._stage + ahead) % self._stages, LANES[task.direction]
        shapes, found = self._shapes(to, task), tuple(tuple(content.shape) for content in contents)
        if found != shapes or any(content.dtype != self._dtype for content in contents):
            raise RunError(
                f"Stages send {self._dtype} of shapes {shapes} to each other, but stage {self._stage} made "
                f"{contents[0].dtype} of {found}."
            )
        self._departing = [handle for handle in self._departing if not handle.release()]
        parts, part_bytes = self._cut(shapes)
        message = torch.empty(part_bytes + TAIL_BYTES, dtype=torch.uint8, device=contents[0].device)
        whole = contents[0].reshape(-1) if len(contents) == 1 else torch.cat([one.reshape(-1) for one in contents])
        part = whole.view(parts, -1)[self._part if parts > 1 else 0]
        message[:part_bytes].view(self._dtype).copy_(part)
        message[part_bytes:].copy_(self._tail(task), non_blocking=True)
        handle = self._comm.issue(Kind.SEND, CUTTING_STAGES, message, lane=lane, peer=to)
        self._sent.append(handle)
        self._departing.append(handle)

    def finish_step(self) -> None:
        """Wait until all that was sent has been received. Raises RunError for a message that was for another task."""
        for handle in self._sent:
            handle.wait()
        self._sent.clear()
        self._departing.clear()
        if self._tails:
            tails = torch.stack([tail for _, tail in self._tails]).cpu()  # at once, as the host waits for it
            for (task, _), tail in zip(self._tails, tails, strict=True):
                self._check(task, tail)
        self._tails.clear()

    def abort_step(self) -> None:
        """Forget all messages, once Comm.abandon() has waited for them."""
        self._expected, self._coming, self._unposted = {}, {}, {}
        self._sent.clear()
        self._departing.clear()
        self._tails.clear()

    def _post(self, direction: Direction, most: int) -> None:
        coming, unposted = self._coming[direction], self._unposted[direction]
        while unposted and len(coming) < most:
            part_bytes = self._cut(self._shapes(self._stage, unposted.popleft()))[1]
            message = torch.empty(part_bytes + TAIL_BYTES, dtype=torch.uint8, device=self._comm.device)
            lane, peer = LANES[direction], self._from[direction]
            coming.append((self._comm.issue(Kind.RECV, CUTTING_STAGES, message, lane=lane, peer=peer), message))

    def _shapes(self, stage: int, task: StageTask) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of what a task of a stage takes: its chunk's inputs, or gradients of the next chunk's."""
        chunk = task.chunk * self._stages + stage
        return self._entering[chunk if task.direction is Direction.FORWARD else chunk + 1]

    def _cut(self, shapes: Shapes) -> tuple[int, int]:
        """Return the number of parts of a message, and the bytes of one."""
        numel = sum(map(prod, shapes))
        parts = self._parts if numel % self._parts == 0 else 1
        return parts, numel // parts * self._dtype.itemsize

    def _tail(self, task: StageTask) -> Tensor:
        numbers = NUMBERS[task.direction], task.number, task.chunk, self._step
        return torch.tensor(numbers, dtype=torch.int32).view(torch.uint8)

    def _check(self, task: StageTask, tail: Tensor) -> None:
        if not torch.equal(tail, self._tail(task)):
            kind, number, chunk, step = tail.clone().view(torch.int32).tolist()
            raise RunError(
                f"Stage {self._stage} wants the message for {task.direction} {task.number} of chunk {task.chunk} in "
                f"step {self._step}, but got number {number} of chunk {chunk} in step {step}, direction {kind}: a "
                "message was lost, doubled or exchanged."
            )
