"""Most peers take the same training step: gradients of micro-batches, clipping by their norm, AdamW of the masters.

What a library does in its own way it overrides.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.peers.comparison import Case
from engine.peers.masters import Masters
from engine.peers.peer import (
    StepMetrics,
    Tensors,
    accumulate,
    autocast,
    mean_divisor,
    mean_over_ranks,
    micro_batches,
    serial_loss,
)
from engine.precision import Precision


class TrainingStep:
    """The network is split already, but for what is wrapped around it afterwards (_parallel).

    masters: where they aren't made of the network here. splits_batch: whether ranks have rows of their own, so that the
    loss is a mean over ranks.
    """

    splits_batch: ClassVar[bool] = False

    def __init__(self, case: Case, model: Any, device: torch.device, masters: Masters | None = None) -> None:
        self._case, self._device = case, device
        self._masters = masters or Masters.of(case, model)
        self._model = self._parallel = model
        self._kinds = by_mesh(self._masters.parameters)
        self._optimizer = self._adamw()

    def step(self, batch: Tensors) -> StepMetrics:
        self._optimizer.zero_grad()
        loss = self._backward(batch)
        self._masters.take_gradients()
        norm = self._clip()
        self._optimizer.step()
        return StepMetrics(mean_over_ranks(loss) if self.splits_batch else whole(loss).item(), float(norm))

    def _adamw(self) -> torch.optim.Optimizer:
        return self._masters.adamw(self._case, *self._kinds)

    def _backward(self, batch: Tensors) -> Tensor:
        """Run all micro-batches forward and backward; returns the mean loss of this rank's rows."""
        divisor, rows = mean_divisor(self._case, batch), len(next(iter(batch.values())))

        def train(part: Tensors, last: bool) -> Tensor:
            with self._around(last):
                loss = self._loss(part, divisor)
                self._differentiate(loss)
            return loss

        return accumulate(micro_batches(batch, rows // (self._case.peer_micro_batch or rows)), train)

    def _around(self, last: bool) -> AbstractContextManager[object]:
        """Give what a micro-batch is computed in, as of most libraries only the last one sums gradients over ranks."""
        return nullcontext()

    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        """Give what a micro-batch adds to the loss."""
        return serial_loss(self._model, self._forward, batch, divisor)

    def _differentiate(self, loss: Tensor) -> None:
        loss.backward()

    def _forward(self, *inputs: Tensor) -> Tensor:
        """Run the network on inputs in the format in which it computes."""
        compute = Precision.parse(self._case.precision).compute
        with autocast(self._case, self._device):
            return self._parallel(*(one.to(compute) if one.is_floating_point() else one for one in inputs))

    def _clip(self) -> Tensor | float:
        """Clip the masters' gradients; returns their norm before."""
        norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in self._kinds]
        # Before it is clipped by: PyTorch 2.9 adds to each rank's part of a norm what is to be added once.
        norm, *others = [whole(one) for one in norms]
        if others:
            norm = torch.linalg.vector_norm(torch.stack([norm, *others]))
        for kind in self._kinds:
            nn.utils.clip_grads_with_norm_(kind, self._case.optim.clip, norm)
        return norm


def whole(tensor: Tensor) -> Tensor:
    """Give the whole of a tensor that may be split."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def by_mesh(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by their mesh, or by having none, as one fused call can't mix these."""
    meshes = [parameter.device_mesh if isinstance(parameter, DTensor) else None for parameter in parameters]
    return [
        [parameter for parameter, its in zip(parameters, meshes, strict=True) if its == mesh]
        for mesh in dict.fromkeys(meshes)
    ]
