"""Base of all serial networks: plain PyTorch, which knows nothing of grids."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.layers.counter_random import BatchRows
from engine.layers.passes import Pass, Rows
from engine.models.tasks import Task

State = Tensor | tuple[Tensor, ...]
"""What blocks give to one another: the stream, alone or before what goes beside it and is trained, too."""


class SerialModel(nn.Module):
    """Network with blocks, and the task that it is trained on."""

    blocks: nn.ModuleList
    recomputed_together = 0
    """number of blocks that run again together in the backward, of which only the input is kept (axonn-ipdps22 V-A);
    0 keeps all that blocks compute"""
    recomputed_blocks: int | None = None
    """number of blocks, the first ones, of which that is so; None for all"""
    own_rows: Rows | None = None
    """rows of the stream that a rank has, where these aren't all"""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.criterion = task.criterion()

    def loss(
        self, batch: Mapping[str, Tensor], rows: BatchRows | None = None, *, divisor: float | Tensor = 1.0
    ) -> Tensor:
        """Compute the task's loss, of a network that takes its inputs. rows: of the global batch, for dropout."""
        return self.task.loss(self.criterion, self(*self.task.inputs(batch), rows=rows), batch, divisor)

    def begin(self, *inputs: Tensor, at: Pass) -> State:
        """Compute what the first block takes, of a batch's inputs."""
        raise NotImplementedError

    def beside(self, x_BSH: Tensor, at: Pass) -> tuple[object, ...]:
        """Return what every block takes beside the stream, of which only the dtype matters."""
        return (at,)

    def record(self, first: Tensor, samples: BatchRows | None) -> Pass:
        """Make the record of a pass. first: the network's first input, or what that is made of."""
        return Pass.of(first, samples, self.own_rows)

    def end(self, state: Any, at: Pass) -> Tensor:
        """Compute the network's output of the state that the last block gives."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Compute the output of a batch's inputs. rows: of the global batch, for dropout."""
        at = self.record(inputs[0], rows)
        return self.end(self.run_blocks(self.begin(*inputs, at=at), at, range(len(self.blocks))), at)

    def run_blocks(self, state: State, at: Pass, numbers: Iterable[int]) -> State:
        """Compute the output of these blocks one after the other, those that are checkpointed in groups, of which the
        last may be a shorter one.
        """
        beside = self.beside(state if isinstance(state, Tensor) else state[0], at)
        again, once = list[nn.Module](), list[nn.Module]()
        for number in numbers:
            (again if torch.is_grad_enabled() and self.recomputes(number) else once).append(self.blocks[number])
        for first in range(0, len(again), self.recomputed_together or 1):
            group = again[first : first + self.recomputed_together]
            state = checkpoint(_one_by_one, state, group, beside, use_reentrant=False, preserve_rng_state=False)
        return _one_by_one(state, once, beside)

    def recomputes(self, number: int) -> bool:
        """Say whether a block, by its number, is recomputed in the backward."""
        return bool(self.recomputed_together) and (self.recomputed_blocks is None or number < self.recomputed_blocks)


def _one_by_one(state: State, blocks: Iterable[nn.Module], beside: tuple[object, ...]) -> State:
    for block in blocks:
        state = block(state, *beside)
    return state
