"""Peers, and the pieces that they share: the serial model, its optimizer, loss, stages and names in other libraries."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.grid import Grid
from engine.layers.passes import Pass
from engine.models.adapters.library import library_state
from engine.models.adapters.stored import Index, Stored, halves
from engine.models.serial import SerialModel
from engine.parallel.initial import initialise_serial
from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout
from engine.precision import Precision, at_least_fp32
from engine.training_record import OptimConfig

Tensors = Mapping[str, Tensor]
"""Rows of a batch, as the network's task makes them."""


class StepMetrics(NamedTuple):
    """Metrics of one step."""

    loss: float
    """Mean over the global batch, in nats."""
    gradient_norm: float
    """Before clipping."""


def check_taken(case: Case, *, taken: bool) -> None:
    """Raise RunError if a step was skipped, as a gradient had overflowed: it would be timed, but not trained."""
    if not taken:
        other = f"a --loss-scale below {case.loss_scale:g}" if case.precision == "fp16" else "--precision fp32"
        raise RunError(f"A gradient overflowed {case.precision}, so that a side skipped a step: take {other}.")


class Peer(Protocol):
    """Model with its parallelism and its optimizer, on the device of comm and in the precision of the case."""

    def __init__(self, case: Case, comm: Comm) -> None: ...

    def step(self, batch: Tensors) -> StepMetrics:
        """Take a whole optimizer step on this rank's rows of the global batch."""


class ExternalPeer(Protocol):
    """Peer in a process of its own, often of another Python, whose layout isn't a grid."""

    data_rank: int
    """Share of the global batch of this rank, known once the peer is built."""

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
    """Say whether a parameter decays, as the engine's do."""
    return parameter.ndim > 1


Decays = Callable[[nn.Parameter], bool]


def decay_groups(
    optim: OptimConfig, *kinds: Iterable[nn.Parameter], decays: Decays = is_matrix
) -> list[dict[str, Any]]:
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
        decay_groups(optim, *kinds, decays=decays),
        lr=optim.learning_rate,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=True,
    )


def serial_loss(model: SerialModel, forward: Callable[..., Tensor], batch: Tensors, divisor: float | Tensor) -> Tensor:
    """Return the task's loss of these rows, never below fp32. forward: the model, or what is wrapped around it."""
    output = at_least_fp32(forward(*model.task.inputs(batch)))
    return model.task.loss(model.criterion, output, batch, divisor)


def mean_cross_entropy(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Return the mean loss of a micro-batch, never below fp32."""
    return F.cross_entropy(at_least_fp32(logits_BSV).flatten(0, 1), targets_BS.flatten())


def mean_divisor(case: Case, batch: Tensors) -> float | Tensor:
    """Return what divides a rank's loss: gradients averaged over ranks are then those of the global mean."""
    valid = case.model.task.valid(batch)
    if not isinstance(valid, Tensor):
        return valid
    valid = valid.double()
    if dist.is_initialized():
        dist.all_reduce(valid)
        valid /= dist.get_world_size()
    return valid


def micro_batches(batch: Tensors, count: int) -> list[dict[str, Tensor]]:
    """Cut a rank's rows into equal parts."""
    chunks = zip(*(tensor.chunk(count) for tensor in batch.values()), strict=True)
    return [dict(zip(batch, part, strict=True)) for part in chunks]


def accumulate(parts: Sequence[Tensors], train: Callable[[Tensors, bool], Tensor]) -> Tensor:
    """Sum the micro-batches' losses.

    train: forward and backward of one; its flag says whether it is the last, as of most libraries only the last sums
    gradients over ranks. Losses are detached, as their graph would live into the next forward.
    """
    losses = [train(part, number == len(parts)).detach() for number, part in enumerate(parts, 1)]
    return sum(losses[1:], losses[0])


def autocast(case: Case, device: torch.device) -> torch.autocast:
    """Compute a forward's matrix products in the compute format where the case asks for it and masters have another."""
    precision = Precision.parse(case.precision)
    enabled = case.autocast and precision.compute != precision.master
    return torch.autocast(device.type, precision.compute, enabled=enabled)


def mean_over_ranks(loss: Tensor) -> float:
    """Average the ranks' losses, each of its own share of the global batch."""
    total = loss.detach()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def grouped_rows(heads: int, keys: int, size: int, *, halved: bool) -> Index:
    """List the rows of a fused projection that has of each key head its query heads, the key and the value.

    halved: whether rotary pairs lie in the halves of a head; else they are neighbours, as in the serial model.
    """
    rows = np.arange((heads + 2 * keys) * size).reshape(keys, -1, size)
    turned = rows[..., halves(1, size)] if halved else rows
    return np.concatenate([turned[:, :-2], turned[:, -2], rows[:, -1]], None)


def rename_weights(case: Case, places: Stored, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the whole state of the serial model under a library's names."""
    serial = serial_model(case, device).state_dict()
    whole = library_state(places, {name: value for name, value in serial.items() if name in places.parts})
    return whole | {second: whole[first] for second, first in places.aliases.items()}


def replace_all(*replaced: tuple[Any, str, Any]) -> None:
    """Replace attributes of owners, each given by owner, name and new value."""
    for owner, name, other in replaced:
        setattr(owner, name, other)


class _Begin(nn.Module):
    """First layers, from tokens [B, S] to [B, S, h]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tokens, self.positions = model.tokens, getattr(model, "positions", None)
        self._begin = model.begin  # a bound method: the model is no submodule, as it would have all blocks as well

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self._begin(tokens_BS, at=Pass.of(tokens_BS))


class _Middle(nn.Module):
    """Block, from [B, S, h] to [B, S, h], recomputed in the backward where the model is."""

    def __init__(self, model: Any, place: int) -> None:
        super().__init__()
        self.block = model.blocks[place]
        self._run, self._place = model.run_blocks, place

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self._run(x_BSH, Pass.of(x_BSH), (self._place,))


class _End(nn.Module):
    """Last layers, from [B, S, h] to logits [B, S, V]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.head = model.norm, model.head
        self._end = model.end

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self._end(x_BSH, Pass.of(x_BSH))


def cut_model(model: Any) -> list[nn.Module]:
    """Cut a serial gpt or llama into modules, each of which takes what the one before gives. Raises Unavailable for a
    network whose first and last would share a table.
    """
    if model.head.weight is model.tokens.weight:
        raise Unavailable("A tied table would be two in a pipeline: compare a network that isn't tied.")
    return [_Begin(model), *(_Middle(model, place) for place in range(len(model.blocks))), _End(model)]
