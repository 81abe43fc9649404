"""Base of all serial networks: plain PyTorch, which knows nothing of grids."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.layers.counter_random import BatchRows
from engine.models.tasks import Task

State = Tensor | tuple[Tensor, ...]
"""What blocks give to one another: the stream, alone or before what goes beside it and is trained, too."""


class SerialModel(nn.Module):
    """Network with blocks, and the task that it is trained on."""

    blocks: nn.ModuleList
    recomputed_together = 0
    """number of blocks that run again together in the backward, of which only the input is kept (axonn-ipdps22 V-A);
    0 keeps all that blocks compute"""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.criterion = task.criterion()

    def loss(
        self, batch: Mapping[str, Tensor], rows: BatchRows | None = None, *, divisor: float | Tensor = 1.0
    ) -> Tensor:
        """Compute the task's loss, of a network that takes its inputs. rows: of the global batch, for dropout."""
        return self.task.loss(self.criterion, self(*self.task.inputs(batch), rows=rows), batch, divisor)

    def begin(self, *inputs: Tensor, rows: BatchRows | None = None) -> State:
        """Compute what the first block takes, of a batch's inputs."""
        raise NotImplementedError

    def beside(self, x_BSH: Tensor, rows: BatchRows | None, positions: int) -> tuple[object, ...]:
        """Return what every block takes beside the stream, of which only device and dtype matter. positions: of a
        sample.
        """
        return (rows,)

    def end(self, state: Any) -> Tensor:
        """Compute the network's output of the state that the last block gives."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Compute the output of a batch's inputs. rows: of the global batch, for dropout."""
        state = self.begin(*inputs, rows=rows)
        return self.end(self.run_blocks(state, rows, range(len(self.blocks)), positions=inputs[0].shape[1]))

    def run_blocks(
        self, state: State, rows: BatchRows | None, numbers: Iterable[int], *, positions: int | None = None
    ) -> State:
        """Compute the output of these blocks one after the other, in groups where they are checkpointed: the last of
        these may be a shorter one. positions: of a sample, where other splits of the network than ours leave x fewer.
        """
        stream = state if isinstance(state, Tensor) else state[0]
        beside = self.beside(stream, rows, positions or stream.shape[1])
        blocks = [self.blocks[number] for number in numbers]
        together = self.recomputed_together
        if not (together and torch.is_grad_enabled()):
            return _one_by_one(state, blocks, beside)
        for first in range(0, len(blocks), together):
            group = blocks[first : first + together]
            state = checkpoint(_one_by_one, state, group, beside, use_reentrant=False, preserve_rng_state=False)
        return state


def _one_by_one(state: State, blocks: Iterable[nn.Module], beside: tuple[object, ...]) -> State:
    for block in blocks:
        state = block(state, *beside)
    return state
