"""Two ranks run in processes of their own, or four: with a card each over NCCL where there are so many, else all on the
first card over gloo (staged.py).
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.comm.meeting import init_process_group
from engine.errors import RunError
from engine.grid import Grid
from engine.result.schema.gpu_check import Finding
from gpu_check.budget import RANKS_WAIT
from gpu_check.staged import Staged

LIMIT_S = 100.0
"""Each finding may take so long on GPUs, and the first may have to compile. Together with what comes before it is less
than the check may take, so that a rank that hangs is reported as such.
"""
BUSY = "busy or unavailable"
"""CUDA says so of a card that only one process may use at a time, if another one does."""
EXCLUSIVE = (
    "A card takes only one process here, and the check itself is on the first: for two ranks set its compute mode to "
    "DEFAULT (nvidia-smi -c DEFAULT)."
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The ranks, as one of them sees them. own_card: whether each has a card of its own."""

    rank: int
    device: torch.device
    own_card: bool

    def comm(self, grid: Grid) -> Comm:
        """Return a Comm of all of them. Collective."""
        timeout = limit(self.device)
        backend = None if self.own_card else Staged(grid, self.device, timeout)
        return Comm(grid, timeout=timeout, device=self.device, backend=backend)

    @property
    def words(self) -> str:
        if self.device.type != "cuda":
            return "over gloo"
        return "a card each over NCCL" if self.own_card else "on one card, copied to the host for gloo"


Work = Callable[[Pair], Iterator[Finding]]


def limit(device: torch.device) -> timedelta:
    """Return how long a finding may take."""
    return timedelta(seconds=LIMIT_S * RANKS_WAIT[device.type])


def found_by_all(work: Work, device: torch.device, ranks: int = 2) -> Iterator[Finding]:
    """Let so many ranks do this work, and give the first one's findings. Raises RunError where a rank fails."""
    own_card = device.type == "cuda" and torch.cuda.device_count() >= ranks
    context = multiprocessing.get_context("forkserver")  # which loads torch once for all of them, and has no card
    context.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe(duplex=False)
        processes = [
            context.Process(
                target=_rank, args=(rank, ranks, there, f"{folder}/store", device.type, own_card, work), daemon=True
            )
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.start()
            there.close()
            while (finding := received(here, processes, limit(device))) is not None:
                yield finding
                if finding.status == "not run":  # the other rank may wait for this one
                    return
            for process in processes:
                process.join(limit(device).total_seconds())
        finally:
            for process in processes:
                process.kill()  # one whose other has failed may wait for it


def received(pipe: Connection, processes: Sequence[BaseProcess], within: timedelta) -> Any:
    """Say what these processes send next. Raises RunError where one of them has ended, or nothing comes in time."""
    with suppress(EOFError):
        if pipe in wait([pipe, *(process.sentinel for process in processes)], within.total_seconds()):
            return pipe.recv()
    raise RunError("A rank failed, or did not answer in time; what it said is in the log.")


def refused(device: torch.device) -> bool:
    """Say whether the card is another process's alone."""
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        if BUSY not in str(error):
            raise
        return True
    return False


def _rank(rank: int, ranks: int, pipe: Connection, store: str, device_type: str, own_card: bool, work: Work) -> None:
    torch.set_num_threads(1)
    place = rank if own_card else 0
    device = torch.device("cpu") if device_type == "cpu" else torch.device("cuda", place)
    if refused(device):
        pipe.send(Finding(name="two ranks", status="not run", sentence=EXCLUSIVE))
        return
    meeting = dist.FileStore(store, ranks)
    if own_card:
        init_process_group(Launch(rank, ranks, rank, "ci/gpu", "127.0.0.1", 0), device, limit(device), meeting)
    else:
        dist.init_process_group("gloo", store=meeting, rank=rank, world_size=ranks, timeout=limit(device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for finding in work(Pair(rank, device, own_card)):
        if rank == 0:
            pipe.send(finding)
    if rank == 0:
        pipe.send(None)
    dist.barrier()
    dist.destroy_process_group()
