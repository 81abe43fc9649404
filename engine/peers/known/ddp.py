"""torch's DistributedDataParallel, which splits the batch of the serial model; weights are copies.

It is bf16 throughout, or by autocast with the hook of torch's own that sums gradients in bf16: both as the engine sums
them.
"""

from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from engine.comm.funnel import Comm
from engine.peers.comparison import Case
from engine.peers.peer import serial_model
from engine.peers.registry import choose_settings
from engine.peers.step import TrainingStep


class DDP(TrainingStep):
    """Step whose gradients are averaged bucket by bucket while the backward runs, in place (gradient_as_bucket_view).

    static_graph, which the network allows, made a step 1 % faster; other bucket sizes did not. With no_sync, which sums
    gradients of micro-batches once a step, it fails in the first one.
    """

    splits_batch = True

    def __init__(self, case: Case, comm: Comm) -> None:
        super().__init__(case, serial_model(case, comm.device), comm.device)
        options = choose_settings("ddp", "DistributedDataParallel", comm.device.type)
        options["static_graph"] &= case.peer_micro_batch in (None, case.batch.sequences // comm.grid.batch_split)
        self._parallel = DistributedDataParallel(self._model, **options)
        if case.precision == "bf16" and case.autocast:
            self._parallel.register_comm_hook(dist.group.WORLD, sum_in_bf16)

    def _around(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._parallel.no_sync()


def sum_in_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Future[Tensor]:
    """Call torch's hook under a name of ours: under its own DDP refuses it on gloo, where it works as well."""
    return bf16_compress_hook(group, bucket)
