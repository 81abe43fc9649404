"""All serial networks have this in common. They are plain PyTorch and know nothing of grids."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from engine.layers.dropout import BatchRows
from engine.models.task import Task


class SerialModel(nn.Module):
    """It is a network with blocks, and the task that it is trained on.

    With checkpoint_activations each block keeps only its inputs and is run again in the backward.
    """

    blocks: nn.ModuleList

    def __init__(self, task: Task, *, checkpoint_activations: bool) -> None:
        super().__init__()
        self.task = task
        self.checkpoint_activations = checkpoint_activations
        self.criterion = task.criterion()

    def loss(
        self, batch: Mapping[str, Tensor], rows: BatchRows | None = None, *, divisor: float | Tensor = 1.0
    ) -> Tensor:
        """Compute the task's loss, of a network that takes its inputs. rows: of the global batch, for dropout."""
        return self.task.loss(self.criterion, self(*self.task.inputs(batch), rows=rows), batch, divisor)

    def begin(self, *inputs: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Compute what the first block takes, of a batch's inputs."""
        raise NotImplementedError

    def beside(self, x_BSH: Tensor, rows: BatchRows | None) -> tuple[object, ...]:
        """Give what every block takes beside the activations: nothing else than their shape and dtype is looked at."""
        return (rows,)

    def end(self, x_BSH: Tensor) -> Tensor:
        """Compute the network's output of that of the last block."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor, rows: BatchRows | None = None) -> Tensor:
        """Compute the output of a batch's inputs. rows: of the global batch, for dropout."""
        return self.end(self.run_blocks(self.begin(*inputs, rows=rows), rows, range(len(self.blocks))))

    def run_blocks(self, x_BSH: Tensor, rows: BatchRows | None, numbers: Iterable[int]) -> Tensor:
        """Compute the output of these blocks one after the other, each checkpointed where that is asked for."""
        beside = self.beside(x_BSH, rows)
        for number in numbers:
            if self.checkpoint_activations and torch.is_grad_enabled():
                block = self.blocks[number]
                x_BSH = checkpoint(block, x_BSH, *beside, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BSH = self.blocks[number](x_BSH, *beside)
        return x_BSH
