"""The overlap schedule's streams: collectives on their lanes, and what needs a second rank."""

from collections.abc import Iterator
from itertools import cycle

import torch
import torch.distributed as dist

from engine.comm.collective import IN_PLACE, LANES, POINT_TO_POINT, Kind, Lane
from engine.comm.groups import ProcessGroups
from engine.comm.launch import Launch, init_process_group
from engine.grid import Axis, Grid
from engine.result.gpu_check import Finding
from gpu_check.messages import messages
from gpu_check.pair import LIMIT, Pair, found_by_both
from gpu_check.splits import splits
from gpu_check.staged import keep_busy

NUMBERS = 1 << 20
BLOCKING = ((False,), (True,), (False, True))
"""Which of the collectives are waited for at once, over and over: none, all, every second one."""


def lanes(device: torch.device) -> Finding:
    """Every kind of collective on every lane of one rank, where each leaves its input as it is.

    They are issued one upon the other while the computing stream is busy, and waited for at the end: each has to wait
    for what it sends, and for the one before it on its lane.
    """
    init_process_group(Launch(0, 1, 0, "ci/gpu", "127.0.0.1", 0), device, LIMIT, dist.HashStore())
    groups = ProcessGroups(Grid(), device, LIMIT)
    ordered = dist.get_backend() == "nccl"
    wrong = issued = 0
    for axis in Axis:
        for lane in LANES.get(axis, (Lane.MAIN,)):
            channel = groups.channel(axis, lane, [0])
            for pattern in BLOCKING:
                last = torch.arange(NUMBERS, dtype=torch.float32, device=device)
                keep_busy(device)
                last = last + 1
                waits = []
                kinds = [kind for kind in Kind if kind not in POINT_TO_POINT]
                for kind, blocking in zip(kinds, cycle(pattern), strict=False):
                    target = last if kind in IN_PLACE else torch.full_like(last, -1)
                    waits.append((channel.start(kind, last, target, None, None, blocking=blocking), last))
                    last, issued = target, issued + 1
                    if blocking or not ordered:
                        waits.pop()[0]()
                for finish, _ in waits:
                    finish()
                wrong += int((last != torch.arange(1, NUMBERS + 1, device=device)).sum())
    backend = dist.get_backend()
    dist.destroy_process_group()
    return Finding(
        name=f"collectives on their lanes, one rank over {backend}",
        status="fail" if wrong else "pass",
        figure=wrong,
        unit="numbers",
        want="none is wrong",
        sentence=f"{issued} collectives, each one's result sent by the next",
    )


def two_ranks(device: torch.device) -> Iterator[Finding]:
    """Messages between them, then training that is split."""
    yield from found_by_both(_work, device)


def _work(pair: Pair) -> Iterator[Finding]:
    yield from messages(pair)
    yield from splits(pair)
