"""parallelize: turns a serial model into the 4D one, layer by layer, by the placements of its parameters.

Activations stay split through the whole network. Weights are created shard by shard: no rank ever holds more than its
own block (x, y) of one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.errors import UsageError
from engine.grid import Axis, Coords, Grid
from engine.layers.dropout import Dropout
from engine.layers.embedding import PositionEmbedding, TokenEmbedding
from engine.layers.linear import Linear
from engine.layers.loss import CrossEntropy
from engine.layers.norm import LayerNorm, RMSNorm
from engine.models.gpt.model import GPT
from engine.models.gpt.placements import gpt_placements
from engine.overlap.flags import ALL, AUTO, Overlap
from engine.overlap.reduction import Gradients, OnSummed
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import WeightBlock
from engine.parallel.initial import initial
from engine.placement import Placement
from engine.planning.fit import Batch, check_grid
from engine.precision import Precision


class ParallelModel(nn.Module):
    """A 4D-parallel model and the state that it owns: placements, and the schedule of its weights and gradients.

    A training step is start_step(); loss(...).backward() for each micro-batch; finish_step(). Without gradients
    (torch.no_grad) it evaluates, at any time. cached_blocks: see cache().
    """

    def __init__(self, module: GPT, comm: Comm, placements: Mapping[str, Placement], schedule: WeightSchedule) -> None:
        super().__init__()
        self.module = module
        self.comm = comm
        self.placements = placements
        self.schedule = schedule
        self.cached_blocks = 0
        self._passes_left = 0

    @property
    def gradients(self) -> Gradients:
        """All gradients of this rank."""
        return self.schedule.gradients

    def loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Sum of the cross-entropies of this rank's tokens, the same on all of x and y."""
        if torch.is_grad_enabled() and not self._passes_left:
            raise RuntimeError("A loss came that no step expects: call start_step(micro_batches) first.")
        with self._pass():
            return self.module.loss(tokens_BS, targets_BS)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Logits [B, S, V / Gx] of this rank's tokens."""
        with self._pass():
            return self.module(tokens_BS)

    def start_step(self, micro_batches: int = 1) -> None:
        """Forget the last step's gradients. What a step that failed left in flight is waited for first."""
        self.abort_step()
        self._passes_left = micro_batches
        self.gradients.start_step()

    def finish_step(self, on_summed: OnSummed | None = None) -> None:
        """Sum over z and data what the backward passes left to be summed.

        on_summed: called with each piece of the parameters as soon as their gradients are final, so that an optimizer
        can step them while the rest is still being summed.
        """
        self._passes_left = 0
        self.schedule.gathers.end_step()
        with torch.no_grad():
            self.gradients.finish(on_summed)

    def abort_step(self) -> None:
        """After an exception in the middle of a step: wait for all that is in flight, so that nothing dangles."""
        self._passes_left = 0
        self.comm.abandon()
        self.schedule.gathers.abort()
        self.gradients.abort()

    @property
    def can_cache(self) -> bool:
        """Whether weights are gathered twice."""
        return self.module.checkpoint_activations and self.comm.grid.z > 1

    def cache(self, blocks: int) -> None:
        """Keep the gathered weights of the last so many blocks, which the backward needs first, from the forward to
        the recomputation (par4d IV-D). Without activation checkpointing, or without z, there is nothing to keep.
        """
        self.cached_blocks = blocks if self.can_cache else 0
        kept = self._weights_of_blocks()[len(self.module.blocks) - self.cached_blocks :]
        self.schedule.gathers.cache([block for weights in kept for block in weights])

    def block_bytes(self) -> int:
        """The gathered weights of one transformer block in the compute dtype."""
        dtype = self.schedule.precision.compute
        return sum(block.gathered_bytes(dtype) for block in self._weights_of_blocks()[0])

    def _weights_of_blocks(self) -> list[list[WeightBlock]]:
        return [[m.block for m in block.modules() if isinstance(m, Linear)] for block in self.module.blocks]

    @contextmanager
    def _pass(self) -> Iterator[None]:
        """A forward of a training step, or one that belongs to none."""
        if not torch.is_grad_enabled() or not self._passes_left:
            with self.schedule.gathers.aside():
                yield
            return
        self._passes_left -= 1
        last = self._passes_left == 0
        self.schedule.gathers.start_pass(last=last)
        self.gradients.start_pass(last=last)
        yield

    def sum_over_batch(self, value: Tensor) -> Tensor:
        """Sum a scalar of each rank's rows over all that share the batch (z and data); in place."""
        for axis in (Axis.Z, Axis.DATA):
            self.comm.run(Kind.ALL_REDUCE, axis, value)
        return value

    def local_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's elements of every parameter under its serial name."""
        return dict(self.module.named_parameters())


def parallelize(
    model: GPT,
    comm: Comm,
    *,
    precision: Precision,
    seed: int,
    overlap: Overlap = ALL,
    device: torch.device | str = "cpu",
) -> ParallelModel:
    """Turn a serial GPT, best built on the meta device, into this rank's part of the 4D model, with initial weights.

    The same seed gives the same global weights on every grid, whatever the precision. The serial model's layers are
    replaced in place. Of the overlap, cache="auto" is left to whoever knows the memory (ParallelModel.cache). Raises
    UsageError if the grid doesn't divide the model.
    """
    grid = comm.grid
    check_grid(model.config, grid, Batch(grid.batch_split))
    placements = gpt_placements(model.config)
    schedule = WeightSchedule(comm, precision, overlap)

    def parameter(name: str) -> nn.Parameter:
        placement = placements[name]
        local = initial(placement, grid, comm.coords, seed).to(device, precision.master)
        return nn.Parameter(local if placement.sharded else local.view(placement.block_shape(grid)))

    blocks: dict[str, WeightBlock] = {}

    def block(name: str) -> WeightBlock:
        if name not in blocks:
            blocks[name] = WeightBlock(placements[name], parameter(name), placements[name].block_shape(grid))
        return blocks[name]

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        weight = f"{name}.weight"
        bias = parameter(f"{name}.bias") if f"{name}.bias" in placements else None
        match layer:
            case nn.Linear():
                shared = model.config.tied and name == "head"
                return Linear(comm, schedule, block("tokens.weight" if shared else weight), bias)
            case nn.Embedding() if placements[weight].sharded:
                return TokenEmbedding(comm, schedule, block(weight))
            case nn.Embedding():
                return PositionEmbedding(parameter(weight), precision.compute)
            case nn.LayerNorm():
                return LayerNorm(comm, parameter(weight), bias, layer.eps)
            case nn.RMSNorm():
                return RMSNorm(comm, parameter(weight), layer.eps or 1e-5)
            case Dropout():
                width = model.config.hidden // grid.y
                return Dropout(layer.p, layer.site, layer.position, comm.coords.y * width)
            case nn.CrossEntropyLoss():
                return CrossEntropy(comm)
        return None

    for name, layer in list(model.named_modules()):
        new = replacement(name, layer)
        if new is not None:
            model.set_submodule(name, new)
    missing = placements.keys() ^ dict(model.named_parameters()).keys()
    if missing:
        raise UsageError(f"The plan of this model and its layers disagree on {', '.join(sorted(missing))}.")
    replicated = [p for name, p in model.named_parameters() if not placements[name].sharded]
    schedule.own(list(blocks.values()), replicated)
    parallel = ParallelModel(model, comm, placements, schedule)
    if overlap.cache != AUTO:
        parallel.cache(overlap.cache)
    return parallel


def initialise_serial(model: GPT, seed: int, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> GPT:
    """Give a serial model built on the meta device the same global weights that every grid starts from."""
    placements = gpt_placements(model.config)
    model.to_empty(device=device).to(dtype)
    if model.config.tied:
        model.head.weight = model.tokens.weight  # to_empty makes two of a shared parameter
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = initial(placements[name], Grid(), Coords(0, 0, 0, 0), seed)
            parameter.copy_(values.view(parameter.shape))
    return model
