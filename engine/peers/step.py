"""Training step of most peers: gradients of micro-batches, clipping by their norm, AdamW of the masters.

A library overrides what it does in its own way. In bf16 without autocast a network of anyone's trains in bf16
throughout, as in the engine and large runs: parameters, their gradients and the residual stream are bf16; AdamW steps
fp32 masters of the parameters, and the norm and the clipping are of gradients in fp32. Nothing else is cast: the angles
of rotary positions stay as they are. With autocast, or in another format, a network's own parameters are its masters.
Gradients of micro-batches add up in bf16, as PyTorch adds them.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from engine.peers.comparison import Case
from engine.peers.peer import (
    Decays,
    StepMetrics,
    Tensors,
    accumulate,
    adamw,
    autocast,
    is_matrix,
    mean_divisor,
    mean_over_ranks,
    micro_batches,
    serial_loss,
)
from engine.precision import Precision


def is_pure(case: Case) -> bool:
    """Say whether parameters are stored in the compute format, beside masters."""
    precision = Precision.parse(case.precision)
    return precision.compute != precision.master and not case.autocast


class Masters:
    """Parameters that an optimizer steps. pairs: parameters of a network, each with its master; none where it steps
    these themselves.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], pairs: Sequence[tuple[nn.Parameter, nn.Parameter]] = ()
    ) -> None:
        self.parameters, self._pairs = list(parameters), pairs

    @classmethod
    def of(cls, case: Case, network: nn.Module) -> "Masters":
        """Make fp32 masters where the case is pure: the network's parameters are replaced by ones in bf16, before DDP,
        which keeps what it finds.
        """
        if not is_pure(case):
            return cls(network.parameters())
        pairs = _narrow(network, Precision.parse(case.precision).compute)
        return cls((master for _, master in pairs), pairs)

    def adamw(self, case: Case, *kinds: Iterable[nn.Parameter], decays: Decays = is_matrix) -> torch.optim.AdamW:
        """Make peer.adamw of kinds of masters: after each step the network's parameters are these, rounded."""
        optimizer = adamw(case.optim, *kinds, decays=decays)
        if self._pairs:
            optimizer.register_step_post_hook(lambda *_: self._round())
        return optimizer

    def take_gradients(self) -> None:
        """Move gradients from the network to its masters: one after the other, as both at once may not fit."""
        for parameter, master in self._pairs:
            if parameter.grad is not None:
                master.grad, parameter.grad = parameter.grad.to(master.dtype), None

    @torch.no_grad()
    def _round(self) -> None:
        narrow, masters = zip(*self._pairs, strict=True)
        torch._foreach_copy_([_local(parameter) for parameter in narrow], [_local(master) for master in masters])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.data


def _narrow(network: nn.Module, dtype: torch.dtype) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Replace each parameter of a network; returns the new ones, each with the one that was there."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in network.modules():
        for name, master in list(module.named_parameters(recurse=False)):
            if master not in made:  # else tied
                made[master] = nn.Parameter(master.detach().to(dtype))
                if not isinstance(master, DTensor):
                    made[master].__dict__.update(master.__dict__)  # libraries keep there how it is split
            setattr(module, name, made[master])
    return [(narrow, master) for master, narrow in made.items()]


class TrainingStep:
    """Step of a network that is split already, but for what is wrapped around it afterwards (_parallel).

    masters: where they aren't made of the network here.
    """

    splits_batch: ClassVar[bool] = False
    """Whether ranks have rows of their own, so that the loss is a mean over ranks."""

    def __init__(self, case: Case, model: Any, device: torch.device, masters: Masters | None = None) -> None:
        self._case, self._device = case, device
        self._masters = masters or Masters.of(case, model)
        self._model = self._parallel = model
        self._kinds = group_by_mesh(self._masters.parameters)
        self._optimizer = self._adamw()

    def step(self, batch: Tensors) -> StepMetrics:
        """Take a whole optimizer step on this rank's rows of the global batch."""
        self._optimizer.zero_grad()
        loss = self._backward(batch)
        self._masters.take_gradients()
        norm = self._clip()
        self._optimizer.step()
        return StepMetrics(mean_over_ranks(loss) if self.splits_batch else whole(loss).item(), float(norm))

    def _adamw(self) -> torch.optim.Optimizer:
        return self._masters.adamw(self._case, *self._kinds)

    def _backward(self, batch: Tensors) -> Tensor:
        """Run all micro-batches forward and backward; return the mean loss of this rank's rows."""
        divisor, rows = mean_divisor(self._case, batch), len(next(iter(batch.values())))

        def train(part: Tensors, last: bool) -> Tensor:
            with self._around(last):
                loss = self._loss(part, divisor)
                self._differentiate(loss)
            return loss

        return accumulate(micro_batches(batch, rows // (self._case.peer_micro_batch or rows)), train)

    def _around(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch, as of most libraries only the last one sums gradients over ranks."""
        return nullcontext()

    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        """Return what a micro-batch adds to the loss."""
        return serial_loss(self._model, self._forward, batch, divisor)

    def _differentiate(self, loss: Tensor) -> None:
        loss.backward()

    def _forward(self, *inputs: Tensor) -> Tensor:
        """Run the network on inputs in the format in which it computes."""
        compute = Precision.parse(self._case.precision).compute
        with autocast(self._case, self._device):
            return self._parallel(*(one.to(compute) if one.is_floating_point() else one for one in inputs))

    def _clip(self) -> Tensor | float:
        """Clip the masters' gradients; return their norm before."""
        norms = [nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None]) for kind in self._kinds]
        # Before it is clipped by: PyTorch 2.9 adds to each rank's part of a norm what is to be added once.
        norm, *others = [whole(one) for one in norms]
        if others:
            norm = torch.linalg.vector_norm(torch.stack([norm, *others]))
        for kind in self._kinds:
            nn.utils.clip_grads_with_norm_(kind, self._case.optim.clip, norm)
        return norm


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be split."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def group_by_mesh(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by their mesh, or by having none, as one fused call can't mix these."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return list(groups.values())
