"""The serial model under FSDP2: fully_shard on each block and on the rest."""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.peer import Values, mean_over_ranks, optimizer, serial_model


class FSDP2:
    """Gathered weights live from forward to backward, as the engine keeps them without activation checkpointing."""

    reshard_after_forward = False

    def __init__(self, case: Case, comm: Comm) -> None:
        self._model = serial_model(case)
        mesh = self.mesh(comm)
        for block in self._model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=self.reshard_after_forward)
        fully_shard(self._model, mesh=mesh, reshard_after_forward=False)
        self._optimizer = optimizer(self._model, case)
        self._clip = case.optim.clip

    def mesh(self, comm: Comm) -> DeviceMesh:
        """All ranks, each with its shard."""
        return init_device_mesh("cpu", (comm.grid.size,))

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        loss = self._model.loss(tokens_BS, targets_BS) / targets_BS.numel()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        assert isinstance(norm, DTensor)
        self._optimizer.step()
        return Values(mean_over_ranks(loss), norm.full_tensor().item())


class FSDP2Reshard(FSDP2):
    """Gathered weights of a block are freed after its forward and gathered again for its backward."""

    reshard_after_forward = True
