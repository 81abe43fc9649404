"""Side of a comparison in this process: its steps, warmed up and timed, a few at a time."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from engine.data.sampler import batch, to_device
from engine.measure.clock import HostClock
from engine.measure.memory import Allocated
from engine.peers.comparison import Case
from engine.peers.peer import StepMetrics, Tensors
from engine.profiling.steps import part_steps
from engine.profiling.trace import TraceError
from engine.result.schema.peers import PeerSide
from engine.result.schema.profile import StepParts

Answer = TypeVar("Answer")
PART: Final = "part"
"""Order to a side in a process of its own to part so many steps, where a number alone is of steps to take."""


def on_batches(
    step: Callable[[Tensors], Answer], case: Case, rows: range, device: torch.device
) -> Callable[[], Answer]:
    """Make a call that takes a peer's next step, on those rows of one global batch after the other."""
    task, done = case.model.task, 0
    dataset = task.data.synthetic()

    def next_step() -> Answer:
        nonlocal done
        read = batch(dataset, task.batch, seed=case.seed, step=done, batch_size=case.batch.sequences, rows=rows)
        done += 1
        return step(to_device(device, read))

    return next_step


class LocalSide:
    """Side that is built and warmed up. A step has ended when the device has done all of it."""

    def __init__(self, build: Callable[[], Callable[[], StepMetrics]], device: torch.device, warmup: int) -> None:
        self._clock, self._device = HostClock(device), device
        watched = max(warmup - 1, 1)
        with Allocated(device) as self._memory:
            self._step = build()
            self.values: Sequence[StepMetrics] = [self._step()]
            """Metrics of the warm-up's steps, of which the last is not watched by what counts memory."""
            if watched > 1:
                self._memory.forget_peak()  # a compiler has tried its kernels in the first step
            self.values = [*self.values, *(self._step() for _ in range(watched - 1))]
        self.values = [*self.values, *(self._step() for _ in range(warmup - watched))]
        self._rounds_s: list[tuple[float, ...]] = []
        self._cpu_s: list[tuple[float, ...]] = []
        self._parts: StepParts | None = None
        self._unparted = ""

    def take(self, steps: int) -> None:
        """Take and time steps. Returns when the device has done all of them."""
        wall, cpu = [self._clock.stamp_end()], [time.process_time()]
        for _ in range(steps):
            self._step()
            wall.append(self._clock.stamp_end())
            cpu.append(time.process_time())
        self._rounds_s.append(tuple(self._clock.seconds(start, end) for start, end in pairwise(wall)))
        self._cpu_s.append(tuple(end - start for start, end in pairwise(cpu)))

    def part(self, steps: int) -> None:
        """Take further steps under the profiler, and on the first rank part them. Collective."""
        first = not dist.is_initialized() or dist.get_rank() == 0
        try:
            self._parts = part_steps(self._step, self._clock.stamp_end, steps, self._device, read=first)
        except TraceError as error:
            self._unparted = str(error)

    def measured(self) -> PeerSide:
        """Return all that was measured."""
        return PeerSide(
            losses=tuple(v.loss for v in self.values),
            gradient_norms=tuple(v.gradient_norm for v in self.values),
            rounds_s=tuple(self._rounds_s),
            cpu_s=tuple(self._cpu_s),
            peak_bytes=self._memory.peak_bytes,
            parts=self._parts,
            unparted=self._unparted,
        )
