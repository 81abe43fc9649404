"""AdamW on the local shards, clipping by the true global norm, and the learning rate's course."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from engine.comm.funnel import Kind
from engine.grid import Axis
from engine.parallel.model import ParallelModel
from engine.placement import Placement
from engine.training.config import OptimConfig


def learning_rate(config: OptimConfig, step: int) -> float:
    """Linear warm-up from the first step, then a cosine down to final_fraction of the rate at decay_steps.

    With decay_steps 0 the rate stays constant after the warm-up.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.decay_steps <= config.warmup_steps:
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * cosine)


def adamw(
    parameters: Mapping[str, nn.Parameter], placements: Mapping[str, Placement], config: OptimConfig
) -> torch.optim.AdamW:
    """PyTorch's fused AdamW over a rank's parameters; whether one is a matrix is read from its serial shape.

    On the meta device, where there is no fused kernel, its form of one kernel for many tensors.
    """
    decayed = [p for name, p in parameters.items() if len(placements[name].shape) > 1]
    others = [p for name, p in parameters.items() if len(placements[name].shape) == 1]
    meta = any(p.is_meta for p in parameters.values())
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=not meta,
        foreach=meta or None,
    )


def groups_of(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, int]:
    """In which of its groups each parameter is."""
    return {p: number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}


def step_only(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], groups: Mapping[nn.Parameter, int]
) -> None:
    """Step these parameters and no others, without a look at the others. groups: of all of them."""
    whole = [group["params"] for group in optimizer.param_groups]
    try:
        for number, group in enumerate(optimizer.param_groups):
            group["params"] = [p for p in parameters if groups[p] == number]
        optimizer.step()
    finally:
        for group, all_of_it in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = all_of_it


@torch.no_grad()
def gradient_norm(model: ParallelModel) -> Tensor:
    """The 2-norm of the whole gradient, after finish_step(): a scalar, the same on every rank.

    Each element counts once: a rank's sum of squares is divided by the number of ranks that hold the same elements.
    """
    comm = model.comm
    by_replicas: dict[int, list[Tensor]] = {}
    for name, parameter in model.local_parameters().items():
        assert parameter.grad is not None
        by_replicas.setdefault(model.placements[name].replicas(comm.grid), []).append(parameter.grad)
    # In fp32 the norm of many elements is safer than the sum of their squares.
    sums = [torch.stack(torch._foreach_norm(of)).square().sum() / replicas for replicas, of in by_replicas.items()]
    total = torch.stack(sums).sum()
    for axis in (Axis.X, Axis.Y, Axis.Z):
        comm.run(Kind.ALL_REDUCE, axis, total)
    return total.sqrt()


@torch.no_grad()
def clip_gradients(model: ParallelModel, norm: Tensor, limit: float) -> None:
    """Scale the gradients so that a norm above the limit becomes the limit; no host synchronisation."""
    model.flat_gradients.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
