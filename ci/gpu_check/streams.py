"""The overlap schedule's streams: do collectives keep order on their lanes, and what needs a second rank?"""

from collections.abc import Iterator
from itertools import cycle

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.collective import IN_PLACE, LANES, OF_MESSAGES, POINT_TO_POINT, ROOTED, Kind, Lane
from engine.comm.contact import Route
from engine.comm.groups import ProcessGroups
from engine.comm.launch import Launch
from engine.comm.meeting import init_process_group
from engine.comm.nccl import NcclChannel
from engine.grid import Axis, Grid
from engine.measure.pending import Pending
from engine.result.schema.gpu_check import Finding
from gpu_check.findings import passes_if
from gpu_check.messages import messages
from gpu_check.pair import Pair, found_by_all, limit
from gpu_check.splits import splits
from gpu_check.staged import LATE_CYCLES, keep_busy, streams_of

NUMBERS = 1 << 20
BLOCKING = ((False,), (True,), (False, True))
"""Of the collectives none, all, or every second one are waited for at once."""
STANDS = "; the computing stream stands still while a lane is busy, so that nothing overlaps"
SLOW_CYCLES = 50 * LATE_CYCLES
LOOKS = 3
"""The host may look too late: it is busy itself, or with the first collective of a communicator."""


def lanes(device: torch.device) -> Finding:
    """Issue every kind of collective on every lane of one rank, where each leaves its input as it is.

    They are issued one upon the other while the computing stream is busy, and waited for at the end: each has to wait
    for what it sends, and for the one before it on its lane. Besides, the computing stream has to go on meanwhile.
    """
    init_process_group(Launch(0, 1, 0, "ci/gpu", "127.0.0.1", 0), device, limit(device), dist.HashStore())
    groups = ProcessGroups(Grid(), device, limit(device))
    ordered = dist.get_backend() == "nccl"
    wrong = issued = 0
    for axis in Axis:
        for lane in LANES.get(axis, (Lane.MAIN,)):
            if lane in OF_MESSAGES:  # they carry no collectives, and NCCL sends a rank nothing of its own
                continue
            channel = groups.channel(axis, lane, [0])
            for pattern in BLOCKING:
                last = torch.arange(NUMBERS, dtype=torch.float32, device=device)
                keep_busy(device)
                last = last + 1
                waits = []
                kinds = [kind for kind in Kind if kind not in POINT_TO_POINT]
                for kind, blocking in zip(kinds, cycle(pattern), strict=False):
                    target = last if kind in IN_PLACE else torch.full_like(last, -1)
                    root = 0 if kind in ROOTED else None
                    waits.append((channel.start(kind, last, target, root, None, blocking=blocking), last))
                    last, issued = target, issued + 1
                    if blocking or not ordered:
                        waits.pop()[0]()
                for finish, _ in waits:
                    finish()
                wrong += int((last != torch.arange(1, NUMBERS + 1, device=device)).sum())
    stands = ordered and not any(_goes_on(device) for _ in range(LOOKS))
    backend = dist.get_backend()
    dist.destroy_process_group()
    return passes_if(
        not (wrong or stands),
        f"collectives on their lanes, one rank over {backend}",
        "none is wrong; the computing stream goes on meanwhile",
        f"{issued} collectives, each one's result sent by the next{STANDS * stands}",
        figure=wrong,
        unit="numbers",
    )


class _Slow(NcclChannel):
    """A channel whose collectives keep their stream busy for some 50 ms."""

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: int | None, pending: Pending | None) -> None:
        keep_busy(source.device, SLOW_CYCLES)
        super().carry_out(kind, source, target, root, pending)


def _goes_on(device: torch.device) -> bool:
    """Say whether the computing stream goes on while a lane is busy, so that there is overlap at all."""
    assert dist.group.WORLD is not None
    streams, sent = streams_of(device), torch.ones(1, device=device)
    channel, received = _Slow(dist.group.WORLD, streams, Route(0, "on a slow lane", [], "nccl")), torch.empty_like(sent)
    finish = channel.start(Kind.ALL_GATHER, sent, received, None, None, blocking=False)
    with streams.use(streams.lane()):
        finish()
        done = streams.current().record_event()
    streams.current().record_event().synchronize()
    goes_on = not done.query()
    done.synchronize()
    return goes_on


def two_ranks(device: torch.device) -> Iterator[Finding]:
    """Check messages between two ranks, then training that is split over them."""
    yield from found_by_all(_work, device)


def _work(pair: Pair) -> Iterator[Finding]:
    yield from messages(pair)
    yield from splits(pair)
