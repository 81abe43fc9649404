"""AdamW on the local shards, clipping by the true global norm, and the learning rate's course."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from engine.comm.funnel import Kind
from engine.grid import Axis
from engine.parallel.model import ParallelModel
from engine.placement import Placement
from engine.training.config import OptimConfig

LONG, ROW = 65536, 512
"""Of elements, where a norm is taken by rows."""


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


class AdamW:
    """PyTorch's fused AdamW over a rank's parameters, any part of which can be stepped alone.

    Whether a parameter is a matrix, which decays, is read from its serial shape. state: of each parameter that has been
    stepped, under the names that torch.optim.AdamW gives it. That class itself would load torch's compiler, a third of
    the processor time in which a rank starts.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], placements: Mapping[str, Placement], config: OptimConfig
    ) -> None:
        self.learning_rate = config.learning_rate
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._config = config
        self._decays = {p: len(placements[name].shape) > 1 for name, p in parameters.items()}

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Step these parameters, by default all, without a look at any other."""
        config = self._config
        chosen = list(self._decays if parameters is None else parameters)
        for decays in (True, False):
            group = [p for p in chosen if self._decays[p] is decays]
            if not group:
                continue
            for parameter in group:
                if parameter not in self.state:
                    self.state[parameter] = _state(parameter, 0)
            states = [self.state[p] for p in group]
            adamw(
                list[Tensor](group),
                [p.grad for p in group if p.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                foreach=False,
                fused=True,
                amsgrad=False,
                beta1=config.beta1,
                beta2=config.beta2,
                lr=self.learning_rate,
                weight_decay=config.weight_decay if decays else 0.0,
                eps=config.eps,
                maximize=False,
            )

    def start_from(self, step: int) -> None:
        """The state of all parameters after so many steps, with moments of zero that are to be filled."""
        for parameter in self._decays:
            self.state[parameter] = _state(parameter, step)


def _state(parameter: nn.Parameter, step: int) -> dict[str, Tensor]:
    held = parameter.detach()
    counts = "cpu" if held.is_meta else held.device  # beside the parameter for a fused kernel, which reads it
    steps = torch.tensor(float(step), dtype=torch.float32, device=counts)
    return {"step": steps, "exp_avg": torch.zeros_like(held), "exp_avg_sq": torch.zeros_like(held)}


def sum_of_squares(tensors: Iterable[Tensor]) -> Tensor:
    """Of all their elements, a scalar. In fp32 by norms, which are safer than the sum of the squares of many elements.

    On processors torch adds up a whole tensor in a few numbers, and loses 2e-4 of the norm of 4 million elements whose
    sizes differ: so a long one is taken by rows.
    """
    parts: list[Tensor] = []
    norms: list[Tensor] = []
    for tensor in tensors:
        if tensor.is_cpu and tensor.numel() > LONG:
            flat = tensor.flatten()
            whole = flat.numel() // ROW * ROW
            norms.append(torch.linalg.vector_norm(torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1)))
            parts.append(flat[whole:])
        else:
            parts.append(tensor)
    return torch.stack([*norms, *torch._foreach_norm(parts)]).square().sum()


@torch.no_grad()
def gradient_norm(model: ParallelModel) -> Tensor:
    """The 2-norm of the whole gradient, after finish_step(): a scalar, the same on every rank.

    Each element counts once: a rank's sum of squares is divided by the number of ranks that hold the same elements.
    """
    comm = model.comm
    sums = [sum_of_squares(of) / replicas for replicas, of in model.gradients_by_replicas.items()]
    total = torch.stack(sums).sum()
    for axis in (Axis.X, Axis.Y, Axis.Z):
        comm.run(Kind.ALL_REDUCE, axis, total)
    return total.sqrt()


@torch.no_grad()
def clip_gradients(model: ParallelModel, norm: Tensor, limit: float) -> None:
    """Scale the gradients so that a norm above the limit becomes the limit; no host synchronisation."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    if not scale.is_cpu or scale != 1:  # a host knows its own, and needn't touch them all for nothing
        model.flat_gradients.mul_(scale)
