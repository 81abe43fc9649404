"""Peers offer a step, and share these pieces: the serial model, its optimizer, its loss."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.serial import SerialModel
from engine.parallel.initial import initialise_serial
from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout
from engine.precision import Precision, at_least_fp32
from engine.training_record import OptimConfig

Tensors = Mapping[str, Tensor]
"""They are rows of a batch, as the network's task makes them."""


class StepMetrics(NamedTuple):
    """One step reports these. loss: mean over the global batch in nats; gradient_norm: before clipping."""

    loss: float
    gradient_norm: float


class Peer(Protocol):
    """It has a model, its parallelism and its optimizer, on the device of comm and in the precision of the case."""

    def __init__(self, case: Case, comm: Comm) -> None: ...

    def step(self, batch: Tensors) -> StepMetrics:
        """Take a whole optimizer step on this rank's rows of the global batch."""


class ExternalPeer(Protocol):
    """It is a peer in a process of its own, often of another Python, whose layout isn't a grid.

    data_rank: which share of the global batch is this rank's, known once it is built.
    """

    data_rank: int

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None: ...

    def step(self, batch: Tensors) -> StepMetrics:
        """Step as a Peer does. The loss is the mean over this rank's rows; nan on a rank that doesn't know it."""


def check_torch(what: str, oldest: str) -> None:
    """Raise Unavailable where PyTorch is older than this needs, though the engine doesn't."""
    if torch.__version__ < oldest:
        raise Unavailable(f"{what} needs PyTorch {oldest} or newer, but this is {torch.__version__}.")


def serial_model(case: Case, device: torch.device | str) -> SerialModel:
    """Make the serial model with the weights that every grid starts from, stored in the master format."""
    dtype = Precision.parse(case.precision).master
    model = initialise_serial(case.model, case.seed, dtype=dtype, device=device)
    model.recomputed_together = case.checkpoint_group(Grid())
    return model


def is_matrix(parameter: nn.Parameter) -> bool:
    """Say whether it decays, as the engine's do."""
    return parameter.ndim > 1


Decays = Callable[[nn.Parameter], bool]


def decaying(optim: OptimConfig, *kinds: Iterable[nn.Parameter], decays: Decays = is_matrix) -> list[dict[str, Any]]:
    """Make the groups of an optimizer. kinds: what one fused call can't mix."""
    groups = [
        {"params": [p for p in kind if decays(p) is wanted], "weight_decay": optim.weight_decay if wanted else 0.0}
        for kind in map(list, kinds)
        for wanted in (True, False)
    ]
    return [group for group in groups if group["params"]]


def adamw(optim: OptimConfig, *kinds: Iterable[nn.Parameter], decays: Decays = is_matrix) -> torch.optim.AdamW:
    """Make PyTorch's own optimizer, fused."""
    return torch.optim.AdamW(
        decaying(optim, *kinds, decays=decays),
        lr=optim.learning_rate,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=True,
    )


def serial_loss(model: SerialModel, forward: Callable[..., Tensor], batch: Tensors, divisor: float | Tensor) -> Tensor:
    """Give the task's loss of these rows, never below fp32. forward: the model, or what is wrapped around it."""
    output = at_least_fp32(forward(*model.task.inputs(batch)))
    return model.task.loss(model.criterion, output, batch, divisor)


def mean_divisor(case: Case, batch: Tensors) -> float | Tensor:
    """Give what divides a rank's loss: gradients that are averaged over ranks are then those of the global mean."""
    valid = case.model.task.valid(batch)
    if not isinstance(valid, Tensor):
        return valid
    valid = valid.double()
    if dist.is_initialized():
        dist.all_reduce(valid)
        valid /= dist.get_world_size()
    return valid


def micro_batches(batch: Tensors, count: int) -> list[dict[str, Tensor]]:
    """Cut a rank's rows into so many equal parts."""
    chunks = zip(*(tensor.chunk(count) for tensor in batch.values()), strict=True)
    return [dict(zip(batch, part, strict=True)) for part in chunks]


def accumulate(parts: Sequence[Tensors], train: Callable[[Tensors, bool], Tensor]) -> Tensor:
    """Sum the micro-batches' losses.

    train: forward and backward of one; its flag says whether it is the last, as of most libraries only the last sums
    gradients over ranks. What it returns has no graph that anyone needs: it would live into the next forward.
    """
    losses = [train(part, number == len(parts)).detach() for number, part in enumerate(parts, 1)]
    return sum(losses[1:], losses[0])


def autocast(case: Case, device: torch.device) -> torch.autocast:
    """Compute matrix products in the compute format where the case asks for it and that isn't the masters'. Only a
    forward belongs under it.
    """
    precision = Precision.parse(case.precision)
    enabled = case.autocast and precision.compute != precision.master
    return torch.autocast(device.type, precision.compute, enabled=enabled)


def mean_over_ranks(loss: Tensor) -> float:
    """Take the mean of what ranks have, each its own share of the global mean."""
    total = loss.detach()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
