"""The overlap schedule's streams: collectives on their lanes, and training on two ranks.

Two ranks train along each axis of the grid in float64, every overlap on, and must have the serial model's losses and
gradient norms; what is read too early or overwritten too soon would show in them. They are a card each over NCCL where
there are two, else both on the first over gloo (staged.py).
"""

import multiprocessing
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist

from engine.comm.collective import IN_PLACE, LANES, POINT_TO_POINT, Kind, Lane
from engine.comm.funnel import Comm
from engine.comm.groups import ProcessGroups
from engine.comm.launch import Launch, init_process_group
from engine.errors import RunError
from engine.grid import Axis, Grid
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL
from engine.peers.alternate import our_side, peer_side
from engine.peers.contest import Case
from engine.peers.peer import Values
from engine.result.gpu_check import Finding
from engine.result.metrics import relative_difference
from engine.training.config import OptimConfig
from gpu_check.staged import Staged, keep_busy
from gpu_check.steps import Reference

LIMIT = timedelta(seconds=120)
GRIDS = tuple(Grid(**{axis.value: 2}) for axis in Axis)
STEPS = 3
BOUND = 1e-10
NUMBERS = 1 << 20
CASE = Case(
    model=GPTConfig("two-ranks", layers=3, hidden=128, heads=4, vocabulary=256, sequence=64, tied=True),
    sequences=4,
    precision="fp64",
    checkpoint_activations=True,
    # Little ahead, few in flight and small buckets, so that every limit is met.
    overlap=replace(ALL, cache=1, prefetch_depth=3, reduce_window=2, bucket_bytes=1e5),
    optim=OptimConfig(clip=0.0),
)


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
            for blocking in (False, True):
                last = torch.arange(NUMBERS, dtype=torch.float32, device=device)
                keep_busy(device)
                last = last + 1
                waits = []
                for kind in (kind for kind in Kind if kind not in POINT_TO_POINT):
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
    """A finding a grid."""
    reference = peer_side(CASE, Comm(Grid()), Reference(CASE))
    exact = [reference() for _ in range(STEPS)]
    own_card = device.type == "cuda" and torch.cuda.device_count() > 1
    how = "a card each over NCCL" if own_card else "both on one card, copied to the host for gloo"
    how = how if device.type == "cuda" else "over gloo"
    for grid, found in zip(GRIDS, _ranks(device, own_card=own_card), strict=True):
        worst = max(
            relative_difference(*pair)
            for ours, wanted in zip(found, exact, strict=True)
            for pair in zip(ours, wanted, strict=True)
        )
        yield Finding(
            name=f"two ranks, {grid}",
            status="pass" if worst <= BOUND else "fail",
            figure=worst,
            want=f"at most {BOUND:g} from the serial model",
            sentence=f"losses and gradient norms of {STEPS} steps in float64, {how}",
        )


def _ranks(device: torch.device, *, own_card: bool) -> Iterator[list[Values]]:
    """What each grid's training tells, one after the other. Raises RunError where a rank fails."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe(duplex=False)
        processes = [
            context.Process(
                target=_rank, args=(rank, there, f"{folder}/store", str(device.type), own_card), daemon=True
            )
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        there.close()
        for _ in GRIDS:
            yield _received(here)
        for process in processes:
            process.join(LIMIT.total_seconds())


def _received(pipe: Connection) -> list[Values]:
    try:
        if wait([pipe], LIMIT.total_seconds()):
            return [Values(*told) for told in pipe.recv()]
    except EOFError:
        pass
    raise RunError("A rank failed, or did not answer in time; what it said is in the log.")


def _rank(rank: int, pipe: Connection, store: str, device_type: str, own_card: bool) -> None:
    torch.set_num_threads(1)
    place = rank if own_card else 0
    device = torch.device("cpu") if device_type == "cpu" else torch.device("cuda", place)
    meeting = dist.FileStore(store, 2)
    if own_card:
        init_process_group(Launch(rank, 2, rank, "ci/gpu", "127.0.0.1", 0), device, LIMIT, meeting)
    else:
        dist.init_process_group("gloo", store=meeting, rank=rank, world_size=2, timeout=LIMIT)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for grid in GRIDS:
        backend = None if own_card else Staged(grid, device, LIMIT)
        comm = Comm(grid, timeout=LIMIT, device=device, backend=backend)
        step = our_side(CASE, comm)
        found = [tuple(step()) for _ in range(STEPS)]
        if rank == 0:
            pipe.send(found)
        comm.barrier()
    dist.destroy_process_group()
