"""WeightSchedule: what layers and a model ask for their weights, and the only way to the overlaps.

A layer has its weight gathered for use, and gives its gradient away to be summed; the model says where steps and tasks
begin and end. The schedule decides when collectives run: gathers ahead of their use and kept (prefetch.py),
reduce-scatters in flight and sums over data in buckets (reduction.py). With Overlap() each is waited for where it is
issued: the numeric oracle.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.grid import Axis
from engine.overlap.flags import Overlap
from engine.overlap.prefetch import Prefetch
from engine.overlap.reduction import Fill, OnSummed, Reduction
from engine.overlap.tasks import Direction, StageTask
from engine.overlap.weight import Casts, Elements, Flat, ShardedWeight, gathered_bytes
from engine.precision import Precision

Contribution = tuple[ShardedWeight, Fill, torch.dtype]
"""Weight, what makes its gradient, and in which dtype."""


@dataclass(frozen=True, slots=True)
class GatheredMemory:
    """Most memory that gathered weights have taken at once: ahead of their use, and cached."""

    prefetch_bytes: int
    cache_bytes: int


class WeightSchedule:
    """Lines 2 and 14 of Algorithm 1, as early and as late as the overlap says.

    weights: the sharded ones, each once; replicated: all other parameters. The .grad of both is set for good. A step is
    start_step(); start_task() before each forward and backward, of whichever pass; finish_step(). What a layer asks
    belongs to the task that began last. The overlap and the cache may change between steps.
    """

    def __init__(
        self,
        comm: Comm,
        weights: Sequence[ShardedWeight],
        replicated: Sequence[nn.Parameter],
        precision: Precision,
        overlap: Overlap,
        elements: Elements | None = None,
        *,
        gathered_again: Collection[ShardedWeight] = (),
        partial: Mapping[nn.Parameter, tuple[Axis, ...]] = MappingProxyType({}),
    ) -> None:
        """Lay the parameters out. elements: where all of them lie, in this order; else they are moved into one tensor.
        partial: axes of replicated ones of whose gradients ranks have parts.

        gathered_again: weights that a layer's backward gathers again instead of keeping them from the forward, for
        several passes under way at once.
        """
        self._gathered_again = frozenset(gathered_again) if comm.grid.shards > 1 else frozenset[ShardedWeight]()
        self.overlap = overlap
        self._in_step = self.deferring = False
        """whether backwards of the step leave the weight gradients of layers to weight tasks"""
        self._contributing_left = 0
        self._left_over: dict[tuple[int, int], list[Contribution]] = {}
        """contributions of each pass whose backward is over, until its weight task"""
        self._leaving: list[Contribution] | None = None
        """where the present task, if it is such a backward, leaves its contributions"""
        self.compute_dtype = precision.compute
        self.flat = Flat([*(weight.shard for weight in weights), *replicated], elements)
        sharded = sum(weight.shard.numel() for weight in weights)
        as_sent = sharded if comm.grid.shards > 1 and not self.flat.offloaded else 0  # cast as they are sent
        self._casts = Casts(self.flat, as_sent, precision.compute)
        self._prefetch = Prefetch(comm, self._casts, precision.compute, overlap)
        self._reduction = Reduction(comm, weights, self.flat, precision, overlap, partial)

    def gather(self, weight: ShardedWeight) -> Tensor:
        """Gather the weight's tile [n, k] in the compute dtype."""
        return weight.tile(self._prefetch.gather(weight))

    def keeps(self, weight: ShardedWeight) -> bool:
        """Say whether a layer keeps the weight's tile for its backward, and doesn't gather it again."""
        return weight not in self._gathered_again

    def cast(self, parameter: nn.Parameter) -> Tensor:
        """Return a replicated parameter in the compute dtype, apart from autograd."""
        return self._casts.cast(parameter)

    def accumulate(self, weight: ShardedWeight, fill: Fill, dtype: torch.dtype | None = None) -> None:
        """Add a layer's gradient [n, k] of this rank's rows, made by fill in that dtype (default: the compute dtype):
        now, or in the pass's weight task, until which fill keeps what it is made of.
        """
        contribution = weight, fill, dtype or self.compute_dtype
        if self._leaving is None:
            self._reduction.accumulate(*contribution)
        else:
            self._leaving.append(contribution)

    def start_step(
        self, tasks: Sequence[StageTask] = (), *, contributing: int | None = None, deferring: bool = False
    ) -> None:
        """Forget the last step's gradients.

        tasks: expected, in their order; others make it slower. contributing: number of backwards, or of weight tasks if
        deferring, where tasks don't tell.
        """
        self._in_step, self.deferring = True, deferring
        kind = Direction.WEIGHT if deferring else Direction.BACKWARD
        self._contributing_left = (
            sum(task.direction is kind for task in tasks) if contributing is None else contributing
        )
        self._casts.start_step()
        if not tasks and contributing is not None:
            halves = Direction.FORWARD, Direction.BACKWARD
            some = [StageTask(direction, number) for direction in halves for number in range(contributing)]
            self._prefetch.start_step(some, apart=True)
        else:
            self._prefetch.start_step(tasks)
        self._reduction.start_step()

    def start_task(self, task: StageTask) -> None:
        self._prefetch.start_task(task)
        self._leaving = None
        if self.deferring and task.direction is Direction.BACKWARD:
            self._leaving = self._left_over[task.number, task.chunk] = []
        elif task.direction is not Direction.FORWARD:
            self._contributing_left -= 1
            self._reduction.start_backward(last=self._contributing_left == 0)
        if task.direction is Direction.WEIGHT:
            with torch.no_grad():
                for contribution in self._left_over.pop((task.number, task.chunk)):
                    self._reduction.accumulate(*contribution)

    def finish_step(self, on_summed: OnSummed | None = None) -> None:
        """End the step after its last backward: every gradient is final then, and nothing in flight.

        on_summed: called with elements as soon as their gradients are final, until it has had all.
        """
        self._casts.end_step()
        self._prefetch.end_step()
        with torch.no_grad():
            self._reduction.finish(on_summed)
        self._in_step = False

    def changing(self, start: int, stop: int) -> AbstractContextManager[Tensor | None]:
        """Return the copy of these elements of the parameters, for their optimizer to change alike; see Casts."""
        return self._casts.changing(start, stop)

    def abort_step(self) -> None:
        """Leave a step in its middle, once Comm.abandon() has waited for all that is in flight."""
        self._casts.end_step()
        self._prefetch.abort()
        self._reduction.abort()
        self._left_over.clear()
        self._in_step, self._leaving = False, None

    def restore_gradients(self) -> None:
        """Restore each .grad as the view of flat_gradients where a user's zero_grad() has dropped it."""
        self._reduction.restore_gradients()

    def evaluating(self) -> AbstractContextManager[None]:
        return self._prefetch.evaluating()

    def switch(self, overlap: Overlap) -> None:
        """Use this overlap from the next step on; cache() says what is cached. Raises RuntimeError during a step."""
        self._refuse_in_step()
        self.overlap = overlap
        self._prefetch.switch(overlap)
        self._reduction.switch(overlap)

    def cache(self, weights: Collection[ShardedWeight]) -> None:
        """From the next step on, keep each of these, and no others, from a gather to its next use in the pass (par4d
        IV-D). Raises RuntimeError in the middle of a step.
        """
        self._refuse_in_step()
        self._prefetch.cache(weights)

    def _refuse_in_step(self) -> None:
        if self._in_step:
            raise RuntimeError("Overlap changes between steps only: call finish_step() or abort_step() first.")

    def gathered_bytes(self, weights: Collection[ShardedWeight]) -> int:
        return gathered_bytes(weights, self.compute_dtype)

    @property
    def gathered_memory(self) -> GatheredMemory:
        return GatheredMemory(self._prefetch.most_ahead_bytes, self._prefetch.most_kept_bytes)

    @property
    def flat_gradients(self) -> Tensor:
        """All gradients in the order of flat, each parameter's .grad being a view; final after finish_step()."""
        return self._reduction.flat
