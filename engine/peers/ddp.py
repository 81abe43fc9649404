"""The serial model under torch's DistributedDataParallel: the batch is split, the weights are copies."""

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.peer import Values, mean_over_ranks, optimizer, serial_model


class DDP:
    """Gradients are averaged bucket by bucket while the backward runs, in place (gradient_as_bucket_view).

    static_graph, which the network allows, made a step 1 % faster; other bucket sizes did not.
    """

    def __init__(self, case: Case, comm: Comm) -> None:
        self._model = serial_model(case)
        self._parallel = DistributedDataParallel(self._model, gradient_as_bucket_view=True, static_graph=True)
        self._optimizer = optimizer(self._model, case)
        self._clip = case.optim.clip

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        logits_MV = self._parallel(tokens_BS).flatten(0, 1)
        loss = self._model.criterion(logits_MV, targets_BS.flatten()) / targets_BS.numel()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        return Values(mean_over_ranks(loss), norm.item())
