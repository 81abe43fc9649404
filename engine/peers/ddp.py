"""The serial model under torch's DistributedDataParallel: the batch is split, the weights are copies.

bf16 throughout, or by autocast with the hook of torch's own that sums gradients in bf16: both as the engine sums them.
"""

from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.masters import Masters
from engine.peers.peer import Values, accumulate, autocast, mean_loss, mean_over_ranks, serial_model
from engine.peers.settings import chosen


class DDP:
    """Gradients are averaged bucket by bucket while the backward runs, in place (gradient_as_bucket_view).

    static_graph, which the network allows, made a step 1 % faster; other bucket sizes did not. With no_sync, which sums
    gradients of micro-batches once a step, it fails in the first one.
    """

    def __init__(self, case: Case, comm: Comm) -> None:
        self._case, self._device = case, comm.device
        self._model = serial_model(case, comm.device)
        self._masters = Masters(case, self._model)
        options = chosen("ddp", "DistributedDataParallel", comm.device.type)
        options["static_graph"] &= case.peer_micro_batch in (None, case.sequences // comm.grid.batch_split)
        self._parallel = DistributedDataParallel(self._model, **options)
        if case.precision == "bf16" and case.autocast:
            self._parallel.register_comm_hook(dist.group.WORLD, sum_in_bf16)
        self._optimizer = self._masters.adamw(case)

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        loss = accumulate(tokens_BS, targets_BS, self._case.peer_micro_batch, self._loss, self._summed)
        self._masters.take_gradients()
        norm = nn.utils.clip_grad_norm_(self._masters.parameters, self._case.optim.clip)
        self._optimizer.step()
        return Values(mean_over_ranks(loss), norm.item())

    def _loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        return mean_loss(self._model, self._forward, tokens_BS, targets_BS)

    def _summed(self, last: bool) -> AbstractContextManager[object]:
        """Over ranks once a step: no_sync before."""
        return nullcontext() if last else self._parallel.no_sync()

    def _forward(self, tokens_BS: Tensor) -> Tensor:
        with autocast(self._case, self._device):
            return self._parallel(tokens_BS)


def sum_in_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
    """torch's hook under a name of ours: under its own DDP refuses it on gloo, where it works as well."""
    return bf16_compress_hook(group, bucket)
