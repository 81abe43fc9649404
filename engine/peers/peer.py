"""What a peer has to offer, and the pieces that all of them share: the serial model, its optimizer, its loss."""

from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.models.serial import SerialModel
from engine.parallel.initial import initialise_serial
from engine.peers.contest import Case
from engine.training.optim import adamw


class Values(NamedTuple):
    """What one step tells. loss: mean over the global batch in nats; gradient_norm: before clipping."""

    loss: float
    gradient_norm: float


class Peer(Protocol):
    """A model, its parallelism and its optimizer, in fp32."""

    def __init__(self, case: Case, comm: Comm) -> None: ...

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """One whole optimizer step on this rank's rows of the global batch."""


def serial_model(case: Case) -> SerialModel:
    """The serial model with the weights that every grid starts from."""
    return initialise_serial(
        case.model, case.seed, dtype=torch.float32, checkpoint_activations=case.checkpoint_activations
    )


def optimizer(model: nn.Module, case: Case) -> torch.optim.AdamW:
    """The engine's optimizer, in the same groups, over a model whose parameters keep their serial names."""
    return adamw(dict(model.named_parameters()), case.model.placements(), case.optim)


def mean_over_ranks(loss: Tensor) -> float:
    """The mean over ranks that have equally many tokens each."""
    total = loss.detach()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
