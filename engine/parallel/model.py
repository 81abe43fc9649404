"""ParallelModel: a 4D-parallel network with the steps that train it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.collective import Kind
from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import CUTTING_STAGES, HOLDING, SPLITTING_ROWS, Axis
from engine.layers.counter_random import BatchRows
from engine.layers.linear import ShardedLinear, all_reduce
from engine.layers.loss import CrossEntropy
from engine.models.serial import SerialModel
from engine.overlap.flags import AUTO, Overlap
from engine.overlap.schedule import GatheredMemory, OnSummed, WeightSchedule
from engine.overlap.tasks import ONE_BY_ONE, Direction, StageTask, StepSchedule
from engine.overlap.weight import Of, ShardedWeight
from engine.parallel.public_loop import Criterion, make_optimizer, sum_and_count, whole_output
from engine.pipeline.cut import Cut
from engine.placement import Placement
from engine.tensor_mode import TensorMode

LONG = 65536
"""Elements beyond which a norm is taken by rows."""
ROW_OF_NORM = 512


def sum_of_squares(tensors: Iterable[Tensor]) -> Tensor:
    """Sum the squares of all elements to a scalar, in fp32 at least, by norms, which lose less than long sums.

    On processors torch adds up a whole tensor in a few numbers, and loses 2e-4 of the norm of 4 million elements whose
    sizes differ: so a long one is taken by rows.
    """
    return torch.stack([_norm(tensor.flatten()) for tensor in tensors]).square().sum()


def _norm(flat: Tensor) -> Tensor:
    dtype = torch.promote_types(flat.dtype, torch.float32)
    if not flat.is_cpu or flat.numel() <= LONG:
        return torch.linalg.vector_norm(flat, dtype=dtype)
    whole = flat.numel() // ROW_OF_NORM * ROW_OF_NORM
    of_rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW_OF_NORM), dim=1, dtype=dtype)
    return _norm(torch.cat([of_rows, flat[whole:].to(dtype)]))


@torch.no_grad()
def norm_over_grid(by_replicas: Mapping[int, Iterable[Tensor]], comm: Comm) -> Tensor:
    """Compute the 2-norm of the whole gradient: a scalar, the same on every rank.

    Each element counts once: a rank's sum of squares is divided by the number of ranks that hold the same elements.
    """
    sums = [sum_of_squares(tensors) / replicas for replicas, tensors in by_replicas.items()]
    total = torch.stack(sums).sum()
    return comm.sum(total, (*HOLDING, CUTTING_STAGES)).sqrt()


@torch.no_grad()
def clip_scale(norm: Tensor, limit: float) -> Tensor:
    """Return the factor that clips a norm to the limit; no host synchronisation."""
    return (limit / (norm + 1e-6)).clamp(max=1.0)


@dataclass(frozen=True)
class Parts:
    """Places of all parameters of a network, by their serial names."""

    cut: Cut
    placements: Mapping[str, Placement]
    owners: Mapping[str, int]
    """stage of each"""
    held: Mapping[str, bool]
    """those of this rank's stage, and whether they are its own: the last stage has a copy of a tied table, which is the
    first one's
    """
    ties: Mapping[str, str]
    """second names of parameters, and the first"""
    entering: tuple[tuple[tuple[int, ...], ...], ...]
    """shapes of each chunk's inputs on one rank, of each sample, stage by stage; and last of the last one's outputs"""
    mode: TensorMode
    shared: str | None = None
    """table of which this rank's stage and another one hold a copy each"""


class ParallelModel(nn.Module):
    """4D-parallel model with its placements and the schedule of weights and gradients.

    A training step is start_step(); loss(...) and its backward() for each micro-batch; finish_step(); clip_gradients();
    and a step of what optimizer() makes. Backwards may come in any order and after other losses, as each knows its
    pass. Without gradients (torch.no_grad) the model evaluates, at any time.
    """

    def __init__(self, module: SerialModel, comm: Comm, parts: Parts, schedule: WeightSchedule) -> None:
        super().__init__()
        self.module = module
        self.comm = comm
        self.parts = parts
        self.placements = parts.placements
        self.cut = parts.cut
        self.schedule = schedule
        self.cached_blocks = 0
        self._forwards: deque[StageTask] = deque()
        """tasks that the step still expects"""
        self._sums: list[Tensor] = []
        """sum and count of each loss of this step by a user's criterion"""
        own = dict(module.named_parameters())
        first_names = {parts.ties.get(name, name): parameter for name, parameter in own.items()}
        self._local_parameters = MappingProxyType({name: first_names[name] for name in parts.held})
        self._placement_of = {p: parts.placements[name] for name, p in self._local_parameters.items()}
        copies = {parts.placements[name].name for name, is_own in parts.held.items() if not is_own}
        by_replicas: dict[int, list[Tensor]] = {}
        for replicas, start, stop in self.ranges(lambda of: 0 if of.name in copies else of.replicas(comm.grid)):
            if replicas:
                by_replicas.setdefault(replicas, []).append(self.flat_gradients[start:stop])
        self.gradients_by_replicas = MappingProxyType(by_replicas)
        """views of the gradients, by how many ranks of one stage store the same elements, without copies of a tied
        table
        """

    @property
    def flat_gradients(self) -> Tensor:
        """All gradients of this rank in one tensor, each parameter's .grad being a view of some of it."""
        return self.schedule.flat_gradients

    def ranges(self, kind: Callable[[Placement], Of]) -> list[tuple[Of, int, int]]:
        """List ranges of the flat parameters and gradients: elements [start, stop) whose parameters are of one kind."""
        return self.schedule.flat.ranges(lambda parameter: kind(self._placement_of[parameter]))

    @property
    def gathered_memory(self) -> GatheredMemory:
        return self.schedule.gathered_memory

    def loss(
        self,
        batch: Mapping[str, Tensor],
        criterion: Criterion | None = None,
        *,
        rows: BatchRows | None = None,
        divisor: float | Tensor = 1.0,
    ) -> Tensor:
        """Sum the loss over this rank's rows; the same on all of x and y.

        Args:
            batch: this rank's rows, by the names that the network's task has.
            criterion: the user's own, of the output whole and the batch; finish_step() then makes gradients those of
                the mean over the global batch. Without it the loss is the task's, divided.
            rows: which of the global batch they are; only a network with dropout asks.
            divisor: what the task counts in the global batch, for a mean of the task's own loss.
        """
        if torch.is_grad_enabled() and not self._forwards:
            raise RuntimeError("A loss came that no step expects: call start_step(micro_batches) first.")
        if criterion is None:
            if self._sums:
                raise UsageError("A step's losses have to come from one criterion: give it to each of them.")
            total = self._run(lambda: self.module.loss(batch, rows, divisor=divisor))
            for axis in self._axes_of_losses:
                total = all_reduce(total, self.comm, axis)
            return total
        counts: list[Tensor] = []

        def evaluate() -> Tensor:
            inputs, own = self.module.task.inputs(batch), self.module.criterion
            output = whole_output(self.module(*inputs, rows=rows), own, self.comm, len(inputs[0]))
            total, count = sum_and_count(criterion(output, batch))
            counts.append(count)
            return total

        total = self._run(evaluate)
        if torch.is_grad_enabled():
            self._sums.append(torch.stack([total.detach().double(), *counts]))
        return total

    def forward(self, *inputs: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Compute the network's output of this rank's rows: logits [B, S, V / Gx] of tokens, or [1, rows, V / Gx]."""
        return self._run(lambda: self.module(*inputs, rows=rows))

    def start_step(self, micro_batches: int = 1, order: StepSchedule = ONE_BY_ONE) -> Sequence[StageTask]:
        """Forget the last step's gradients, after waiting for what a failed step left in flight; returns the expected
        tasks.

        Losses have to come in the order of their forwards; other backwards are slower, not wrong. Raises UsageError for
        a stage of a pipeline, which a schedule steps (runner.py).
        """
        if self.cut.stages > 1:
            raise UsageError(
                f"A loop of one's own steps a whole network, but the grid {self.comm.grid} cuts it into "
                f"{self.cut.stages} stages: leave the stages out, or step them by a Runner."
            )
        self.abort_step()
        self.schedule.restore_gradients()
        tasks = list(order.order(0, 1, micro_batches).known)
        self._forwards.extend(task for task in tasks if task.direction is Direction.FORWARD)
        self.schedule.start_step(tasks)
        return tasks

    def finish_step(self, on_summed: OnSummed | None = None) -> Tensor | None:
        """Sum what the backward passes left to be summed over ranks.

        Returns the mean loss over the global batch where a user's criterion counted it. on_summed: called with elements
        [start, stop) of flat_gradients once they are final, so that an optimizer can step their parameters meanwhile.
        """
        self._forwards.clear()
        if self.parts.shared is None:
            self.schedule.finish_step(on_summed)
        else:
            self.schedule.finish_step()
            self._sum_shared(self.parts.shared)
            if on_summed is not None:
                on_summed(0, len(self.flat_gradients))
        mean = self._divide() if self._sums else None
        self._sums.clear()
        return mean

    def _divide(self) -> Tensor:
        """Make gradients of sums those of the mean over all that was counted, and return that mean."""
        total, count = self.comm.sum(torch.stack(self._sums).sum(0), SPLITTING_ROWS)
        self.flat_gradients.div_(count.to(self.flat_gradients.device))
        return total / count

    def gradient_norm(self) -> Tensor:
        """Compute the 2-norm of the whole gradient, after finish_step(): a scalar, the same on every rank."""
        return norm_over_grid(self.gradients_by_replicas, self.comm)

    def clip_gradients(self, limit: float) -> Tensor:
        """Scale the whole gradient so that its norm is at most the limit; returns the norm before."""
        norm = self.gradient_norm()
        self.flat_gradients.mul_(clip_scale(norm, limit))
        return norm

    def optimizer(self, kind: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
        """Make an optimizer of torch for this rank's parts of the weights. Raises UsageError for one that mixes
        elements of a weight.
        """
        return make_optimizer(kind, self.parameters(), options, self.flat_gradients.dtype)

    @torch.no_grad()
    def _sum_shared(self, name: str) -> None:
        """Sum the gradient of a table that the first and the last stage both hold, in the same order on both."""
        gradient = self._local_parameters[name].grad
        assert gradient is not None
        first, last = 0, self.cut.stages - 1
        own = gradient.flatten()
        other = torch.empty_like(own)
        is_first = self.comm.coords[CUTTING_STAGES] == first
        peer = last if is_first else first
        calls = [(Kind.SEND, own), (Kind.RECV, other)]
        for handle in [self.comm.issue(kind, CUTTING_STAGES, what, peer=peer) for kind, what in calls]:
            handle.wait(unavoidable=True)
        gradient.copy_((own + other if is_first else other + own).view_as(gradient))

    def abort_step(self) -> None:
        """Leave a step after an exception in its middle: wait for all that is in flight, so that nothing dangles."""
        self._forwards.clear()
        self._sums.clear()
        self.comm.abandon()
        self.schedule.abort_step()

    def switch(self, overlap: Overlap) -> None:
        """Use this overlap from the next step on, with the same numbers; cache="auto" keeps nothing until
        cache_blocks() says how much. Raises RuntimeError in the middle of a step.
        """
        self.schedule.switch(overlap)
        self.cache_blocks(0 if overlap.cache == AUTO else overlap.cache)

    @property
    def can_cache(self) -> bool:
        """Whether weights are gathered twice."""
        return self.module.recomputed_together > 0 and self.comm.grid.shards > 1

    def cache_blocks(self, count: int) -> None:
        """Keep the gathered weights of the last blocks that are recomputed, which the backward needs first, until then
        (par4d IV-D).

        Without activation checkpointing, or without shards, there is nothing to keep. Raises RuntimeError in a step.
        """
        count = count if self.can_cache else 0
        weights = self._weights_of_blocks()
        kept = weights[max(len(weights) - count, 0) :]
        self.schedule.cache([weight for weights in kept for weight in weights])
        self.cached_blocks = count

    def block_bytes(self) -> list[int]:
        return [self.schedule.gathered_bytes(weights) for weights in self._weights_of_blocks()]

    def _weights_of_blocks(self) -> list[list[ShardedWeight]]:
        of_blocks = (
            [m.sharded for m in block.modules() if isinstance(m, ShardedLinear)]
            for number, block in enumerate(self.module.blocks)
            if self.module.recomputes(number)
        )
        return [weights for weights in of_blocks if weights]

    def entering(self, batch: Mapping[str, Tensor]) -> list[list[tuple[int, ...]]]:
        """Return the shapes of what each chunk of the network takes, of a batch."""
        rows = len(next(iter(batch.values())))
        own = self.module.own_rows
        if own is None:
            return [[(rows, *shape) for shape in shapes] for shapes in self.parts.entering]
        return [[(1, rows * length // own.parts, width) for length, width in shapes] for shapes in self.parts.entering]

    def _run(self, forward: Callable[[], Tensor]) -> Tensor:
        """Run the network: for the next forward that the step expects, or for one that belongs to no step."""
        if not torch.is_grad_enabled() or not self._forwards:
            with self.schedule.evaluating():
                return forward()
        schedule, task = self.schedule, self._forwards.popleft()
        schedule.start_task(task)
        output = forward()
        if output.requires_grad:
            backward = StageTask(Direction.BACKWARD, task.number)
            output.register_hook(lambda _: schedule.start_task(backward))
        return output

    def sum_over_batch(self, value: Tensor) -> Tensor:
        """Sum a scalar of each rank's rows over all that share the batch; in place."""
        return self.comm.sum(value, SPLITTING_ROWS)

    def sum_losses(self, value: Tensor) -> Tensor:
        """Sum losses of each rank's rows, 0 but on the last stage, over all that share the batch; in place."""
        return self.comm.sum(value, (*SPLITTING_ROWS, *self._axes_of_losses, CUTTING_STAGES))

    @property
    def _axes_of_losses(self) -> tuple[Axis, ...]:
        """Axes besides those that split the batch along which ranks have losses of different rows."""
        criterion = self.module.criterion
        return criterion.partial if isinstance(criterion, CrossEntropy) else ()

    def local_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return this rank's elements of every parameter of its stage under its serial name."""
        return self._local_parameters

    def own_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the same without the last stage's copy of a tied table."""
        return {name: self._local_parameters[name] for name, is_own in self.parts.held.items() if is_own}
