"""The serial model under FSDP2 with hybrid sharding: shards over z, copies over data."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.fsdp2 import FSDP2


class HSDP(FSDP2):
    """As FSDP2 on a two-dimensional mesh, whose second dimension is the sharded one. Where activations are recomputed
    weights are gathered again, too.
    """

    settings = "hsdp"

    def how(self, case: Case, comm: Comm) -> dict[str, Any]:
        """See FSDP2.how."""
        return super().how(case, comm) | ({"reshard_after_forward": True} if case.checkpoint_activations else {})

    def before(self, last: bool) -> AbstractContextManager[object]:
        """Gradients are sharded after each micro-batch, and summed over copies after the last."""
        self._model.set_requires_all_reduce(last)  # type: ignore[operator]
        return nullcontext()

    def mesh(self, comm: Comm) -> DeviceMesh:
        """Ranks in the engine's order: z within data."""
        return init_device_mesh(comm.device.type, (comm.grid.data, comm.grid.z), mesh_dim_names=("replicate", "shard"))
