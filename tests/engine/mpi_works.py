"""Work of ranks of mpirun for tests, in a file that loads little."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from pipelines import make
from training import Case, Outcome, train_parallel
from waiting import until

from engine.comm.collective import Kind, Lane
from engine.comm.funnel import Comm
from engine.grid import Axis
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import Overlap

LARGE = 100_000
"""Elements of a message that no socket's buffers have room for."""
CASE = Case(
    GPTConfig("stages", layers=3, hidden=96, heads=4, vocabulary=96, sequence=64),
    sequences=48,
    micro_batches=12,
    overlap=Overlap(),
    order=make("1f1b"),
)
"""Its stages send each other four times 192 KiB a micro-batch, of which each of two ranks has half."""


def messages_beside_waits(comm: Comm) -> list[float]:
    """Have rank 0 wait for rank 1 to have its message in every other way; return the messages."""
    store, came = dist.distributed_c10d._get_default_store(), Path("came")
    found = list[float]()
    ways: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (comm.barrier, comm.barrier),
        (dist.barrier, dist.barrier),
        (lambda: store.set("came", ""), lambda: store.wait(["came"])),
        (came.touch, lambda: until(came.exists)),
    ]
    for number, (tell, wait) in enumerate(ways):
        if comm.rank == 0:
            message = torch.full((LARGE,), float(number))
            sent = comm.issue(Kind.SEND, Axis.PIPE, message, lane=Lane.FORWARD, peer=1)
            wait()
            sent.wait()
        else:
            message = torch.full((LARGE,), -1.0)
            got = comm.issue(Kind.RECV, Axis.PIPE, message, lane=Lane.FORWARD, peer=0).wait()
            found.append(got.mean().item())
            tell()
    return found


def trained(comm: Comm) -> Outcome:
    return train_parallel(CASE, comm)
