"""All serial networks have this in common. They are plain PyTorch and know nothing of grids."""

from collections.abc import Mapping

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

    def run_block(self, block: nn.Module, x_BSH: Tensor, *others: object) -> Tensor:
        """Compute one block's output, checkpointed where that is asked for."""
        if self.checkpoint_activations and torch.is_grad_enabled():
            output = checkpoint(block, x_BSH, *others, use_reentrant=False, preserve_rng_state=False)
            assert isinstance(output, Tensor)
            return output
        return block(x_BSH, *others)
