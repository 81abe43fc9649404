"""Optimizers: their protocol; AdamW of local shards, clipped by the true global norm; the learning rate's course."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from engine.layers.compiled import Compiled
from engine.optimizer_state import ADAMW, BUCKET, OptimizerName, OptimizerState
from engine.parallel.model import ParallelModel
from engine.training.offload import Buckets, Piece
from engine.training_record import OptimConfig

ROW = 16
"""Elements that take a multiple of 16 bytes, whatever the dtype."""


class Optimizer(Protocol):
    """Optimizer of the flat tensor of a rank's parameters, any part of which can be stepped alone."""

    keeps: OptimizerState
    """Tensors kept of each parameter and where, which plans count."""
    state: Mapping[nn.Parameter, Mapping[str, Tensor]]
    """Tensors by parameter and name, each in the parameter's shape; checkpoints write and fill them."""
    learning_rate: float
    """Rate of the step that was started last."""

    def start_step(self, done: int, *, skipped: int = 0) -> None:
        """Prepare the next step, so many being done, by which the rate goes; of these some were skipped, as if they had
        not been.
        """
        ...

    def step(self, start: int = 0, stop: int | None = None, *, scale: Tensor | None = None) -> None:
        """Step the elements [start, stop), by default all, with their gradients times scale."""
        ...


MakeOptimizer = Callable[[ParallelModel, OptimConfig], Optimizer]


def learning_rate(config: OptimConfig, step: int) -> float:
    """Return the rate of a step: a linear warm-up from the first, then a cosine down to final_fraction of the rate at
    decay_steps.

    With decay_steps 0 the rate stays constant after the warm-up.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.decay_steps <= config.warmup_steps:
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * cosine)


class AdamW:
    """AdamW on the flat tensor of a rank's parameters (Loshchilov and Hutter 2019, Algorithm 2).

    Whether a parameter is a matrix, which decays, is read from its serial shape. torch.optim.AdamW itself would load
    torch's compiler, a third of the processor time in which a rank starts.
    """

    keeps = ADAMW

    def __init__(self, model: ParallelModel, config: OptimConfig, bucket: int = BUCKET) -> None:
        """Begin with moments of zero. bucket: elements on the host that are stepped at a time."""
        flat = model.schedule.flat
        self._model, self._config = model, config
        apart = model.comm.grid.shards > 1 or flat.offloaded > 0  # what is sharded has no copy, or lies on the host
        self._ranges = model.ranges(lambda placement: (len(placement.shape) > 1, apart and placement.sharded))
        moments = flat.elements.zeros(), flat.elements.zeros()
        self._held = flat.elements, *moments
        self._buckets = Buckets([of.host for of in self._held], flat.masters.device, bucket) if flat.offloaded else None
        self._unscaled = torch.ones((), dtype=flat.masters.dtype, device=flat.masters.device)
        self.state: Mapping[nn.Parameter, Mapping[str, Tensor]] = {
            parameter: {
                name: moment.part(*place).view(parameter.shape)
                for name, moment in zip(self.keeps.names, moments, strict=True)
            }
            for parameter, place in flat.places.items()
        }
        self.start_step(0)

    def start_step(self, done: int, *, skipped: int = 0) -> None:
        """Compute the factors of the next step, so many steps being done, of which some were skipped."""
        config, masters = self._config, self._model.schedule.flat.masters
        self.learning_rate = learning_rate(config, done)
        self._rules = [
            Rule(done - skipped + 1, self.learning_rate, config.beta1, config.beta2, decay, config.eps)
            for decay in (0.0, config.weight_decay)
        ]
        factors = torch.tensor([rule.factors() for rule in self._rules], dtype=masters.dtype)
        if masters.is_cuda:
            factors = factors.pin_memory()
        self._factors = factors.to(masters.device, non_blocking=True).unbind()

    @torch.no_grad()
    def step(self, start: int = 0, stop: int | None = None, *, scale: Tensor | None = None) -> None:
        """Step these elements, by default all, without a look at any other.

        scale: their gradients are taken times that. Some kernels scale .grad too, so it isn't used afterwards.
        """
        scale = self._unscaled if scale is None else scale
        schedule = self._model.schedule
        for (decays, _), low, high in self._ranges:
            for first, last, held in self._pieces(max(low, start), high if stop is None else min(high, stop)):
                # In rows, so that a compiler knows of any length what it is a multiple of, and vectorises.
                rows = (-1, ROW) if (last - first) % ROW == 0 else (-1, 1)
                p, m, v = (of.view(rows) for of in held)
                g = schedule.flat_gradients[first:last].view(rows).to(p.dtype)
                with schedule.changing(first, last) as copy:
                    copied = None if copy is None else copy.view(rows)
                    adamw(p, g, m, v, copied, scale, self._factors[decays], self._rules[decays])

    def _pieces(self, low: int, high: int) -> Iterable[Piece]:
        """Return a range's masters and moments: all at once where they lie on the device, else a bucket at a time."""
        if low >= high:
            return []
        if self._buckets is not None and high <= self._model.schedule.flat.offloaded:
            return self._buckets.visits(low, high)
        return [(low, high, [of.part(low, high) for of in self._held])]


class NoOptimizer:
    """No steps and no state: the weights stay as they are, and a step is its gradients (--optimizer none)."""

    keeps = OptimizerState()
    learning_rate = 0.0

    def __init__(self, model: ParallelModel, config: OptimConfig) -> None:
        self.state: Mapping[nn.Parameter, Mapping[str, Tensor]] = {
            parameter: {} for parameter in model.schedule.flat.places
        }

    def start_step(self, done: int, *, skipped: int = 0) -> None:
        """Do nothing, as there is no rate."""

    def step(self, start: int = 0, stop: int | None = None, *, scale: Tensor | None = None) -> None:
        """Leave the elements as they are."""


OPTIMIZERS: Mapping[OptimizerName, MakeOptimizer] = {"adamw": AdamW, "none": NoOptimizer}


class Rule(NamedTuple):
    """Numbers of AdamW's step of a parameter. number: of the step, the first being 1."""

    number: int
    learning_rate: float
    beta1: float
    beta2: float
    decay: float
    eps: float

    def factors(self) -> tuple[float, ...]:
        """Return the step's factors for a tensor, as compiled code takes what changes from step to step."""
        unbiased = 1 - self.beta1**self.number, 1 - self.beta2**self.number
        # what is kept is so near to 1 that fp32 has few digits of the difference
        lost = self.learning_rate * self.decay
        return 1 - self.beta1, 1 - self.beta2, lost, self.learning_rate / unbiased[0], unbiased[1] ** -0.5, self.eps


def _in_one_pass(
    masters: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    copy: Tensor | None,
    scale: Tensor,
    factors: Tensor,
    rule: Rule,
) -> None:
    """Step elements in one pass that reads 16 bytes a parameter of fp32, and writes 12, and 2 of a copy in bf16."""
    to_first, to_second, lost, rate, root, eps = factors.unbind()
    g = gradients * scale
    first.add_((g - first) * to_first)
    second.add_((g * g - second) * to_second)
    masters.sub_(masters * lost + rate * first / (second.sqrt() * root + eps))
    if copy is not None:
        copy.copy_(masters)


def _by_pytorch(
    masters: Tensor,
    gradients: Tensor,
    first: Tensor,
    second: Tensor,
    copy: Tensor | None,
    scale: Tensor,
    factors: Tensor,
    rule: Rule,
) -> None:
    """Step elements by a kernel that also writes the scaled gradients; the copy takes a pass of its own."""
    divisor = None
    if not scale.is_cpu or scale != 1:  # a host knows its own, and needn't write gradients for nothing
        if masters.dtype == torch.float32:
            divisor = scale.reciprocal()
        else:  # the kernel takes it in fp32 only
            gradients.mul_(scale)
    number = torch.full((), rule.number, dtype=torch.float32, device="cpu" if masters.is_meta else masters.device)
    torch._fused_adamw_(
        [masters], [gradients], [first], [second], [], [number],
        lr=rule.learning_rate, beta1=rule.beta1, beta2=rule.beta2, weight_decay=rule.decay, eps=rule.eps,
        amsgrad=False, maximize=False, grad_scale=divisor, found_inf=None,
    )  # fmt: skip
    if copy is not None:
        copy.copy_(masters)


adamw = Compiled(_by_pytorch, _in_one_pass, tried=False)
"""Step of elements in place, state and copy included, with their gradients times a scale. No copies are made,
as nothing else is as large.
"""
