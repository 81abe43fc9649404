"""FSDP2: fully_shard on each block of the serial model and on the rest, on the meta device; no rank makes all of it.

Of several micro-batches it sums gradients over ranks after the last one, and keeps them whole until then, as it keeps
gathered weights; where it gathers twice to save memory, gradients are sharded after each.

bf16 is by its own policy: bf16 weights are gathered, gradients are reduced in bf16 or as --reduce-dtype says, masters
stay fp32, as in the engine.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from engine.comm.funnel import Comm
from engine.models.serial import SerialModel
from engine.parallel.initial import initial_rows, materialise, without_values
from engine.peers.comparison import Case
from engine.peers.registry import choose_settings
from engine.peers.step import Masters, TrainingStep
from engine.precision import Precision

HANDED_ON = "FSDP2-wrapped module .* returned a view tensor"
"""Its warning of what a block hands on as it was, which matters only to those that would change it in place."""


def policy(case: Case) -> MixedPrecisionPolicy:
    """Leave what a block is given as it is: its activations have the right format, and rotary angles need theirs."""
    precision = Precision.parse(case.precision)
    if precision.compute == precision.master:
        return MixedPrecisionPolicy()
    sums = Precision.parse(case.sums["reduce_dtype"]).compute
    return MixedPrecisionPolicy(param_dtype=precision.compute, reduce_dtype=sums, cast_forward_inputs=False)


def fill(model: SerialModel, case: Case) -> None:
    """Fill each rank's shards, rows as torch.chunk cuts them, with the weights that every grid starts from."""
    placements = case.model.placements()
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, DTensor)
        (dim,) = [number for number, placed in enumerate(parameter.placements) if placed.is_shard()]
        mesh, local, all_rows = parameter.device_mesh, parameter.to_local(), len(parameter)
        first = min(-(-all_rows // mesh.size(dim)) * mesh.get_local_rank(dim), all_rows)
        with torch.no_grad():
            local.copy_(initial_rows(placements[name], range(first, first + len(local)), case.seed, local.device))


class FSDP2(TrainingStep):
    """Sharded weights that are gathered from forward to backward, as the engine keeps them without recomputation."""

    settings = "fsdp2"
    splits_batch = True

    def __init__(self, case: Case, comm: Comm) -> None:
        model = without_values(case.model)
        model.recomputed_together = int(case.checkpoint_activations)
        model.to(Precision.parse(case.precision).master)
        mesh, mixed, blocks = self.mesh(comm), policy(case), list(model.blocks)
        how = self.how(case, comm)
        warnings.filterwarnings("ignore", HANDED_ON)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=mixed, **how)
        fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=mixed)
        ahead = choose_settings(self.settings, "set_modules_to_forward_prefetch", comm.device.type)["blocks"]
        for place, block in enumerate(blocks):
            if coming := blocks[place + 1 : place + 1 + ahead]:
                block.set_modules_to_forward_prefetch(coming)  # type: ignore[operator]
        materialise(model, case.model, comm.device)
        fill(model, case)
        own = replace(case, autocast=False)  # the policy says in which format
        super().__init__(own, model, comm.device, Masters(model.parameters()))

    def how(self, case: Case, comm: Comm) -> dict[str, Any]:
        """Return what fully_shard takes for each block."""
        return choose_settings(self.settings, "fully_shard", comm.device.type)

    def mesh(self, comm: Comm) -> DeviceMesh:
        return init_device_mesh(comm.device.type, (comm.grid.size,))

    def _around(self, last: bool) -> AbstractContextManager[object]:
        self._model.set_requires_gradient_sync(last)
        self._model.set_reshard_after_backward(last)
        return nullcontext()


class FSDP2Reshard(FSDP2):
    """Sharded weights that are freed after a block's forward and gathered again for its backward."""

    settings = "fsdp2-reshard"

    def _around(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext()


class HSDP(FSDP2):
    """Shards over z and copies over data, on a mesh whose second dimension is the sharded one.

    Where activations are recomputed weights are gathered again, too.
    """

    settings = "hsdp"

    def how(self, case: Case, comm: Comm) -> dict[str, Any]:
        return super().how(case, comm) | ({"reshard_after_forward": True} if case.checkpoint_activations else {})

    def _around(self, last: bool) -> AbstractContextManager[object]:
        self._model.set_requires_all_reduce(last)
        return nullcontext()

    def mesh(self, comm: Comm) -> DeviceMesh:
        return init_device_mesh(
            comm.device.type, (comm.grid.model_replicas, comm.grid.shards), mesh_dim_names=("replicate", "shard")
        )
