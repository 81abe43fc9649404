"""The serial model under FSDP2 with hybrid sharding: shards over z, copies over data."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from engine.comm.funnel import Comm
from engine.peers.fsdp2 import FSDP2


class HSDP(FSDP2):
    """As FSDP2 on a two-dimensional mesh, whose second dimension is the sharded one."""

    def mesh(self, comm: Comm) -> DeviceMesh:
        """Ranks in the engine's order: z within data."""
        return init_device_mesh(comm.device.type, (comm.grid.data, comm.grid.z), mesh_dim_names=("replicate", "shard"))
