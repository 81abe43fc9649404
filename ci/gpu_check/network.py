"""Network that NCCL takes here. Its own log names it in every run; with two cards there are two ranks, else one."""

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from engine.comm.launch import Launch
from engine.comm.meeting import init_process_group
from engine.comm.transport import NetworkLog, backend_of, listen
from engine.errors import RunError
from engine.result.schema.gpu_check import Finding
from gpu_check.budget import RANKS_WAIT
from gpu_check.findings import passes_if
from gpu_check.pair import received

LIMIT_S = 30.0
"""On GPUs all that follows the start of the other rank takes less."""
UNKNOWN = "unknown"


def network(device: torch.device) -> Finding:
    """Ask all ranks which network they heard of."""
    count = min(torch.cuda.device_count(), 2) if device.type == "cuda" else 2
    return judged(backend_of(device), _heard(device.type, count))


def judged(backend: str, heard: Sequence[NetworkLog]) -> Finding:
    """Judge what each rank heard. NCCL's version is in the log of one of them."""
    unread = next((one.unread or "the log names none" for one in heard if not one.network), None)
    library = next((one.library for one in heard if one.library), None)
    if unread is None and library is None and backend == "nccl":
        unread = "the log has no version"
    known = {
        "library": library,
        "network": " and ".join(sorted({one.network for one in heard if one.network})) or UNKNOWN,
        "plugin": next((one.plugin for one in heard if one.plugin), None),
        "provider": next((one.provider for one in heard if one.provider), None),
        "interfaces": next((one.interfaces for one in heard if one.interfaces), None),
    }
    named = ", ".join(f"{what} {value}" for what, value in known.items() if value)
    ranks = f"by the log of {len(heard)} {'rank' if len(heard) == 1 else 'ranks'}"
    want = "the log tells the version and the network" if backend == "nccl" else "it is known"
    failed = "" if unread is None else f"{unread[0].upper()}{unread[1:]}; "
    return passes_if(unread is None, f"network of {backend}", want, f"{failed}{named}, {ranks}")


def _heard(device_type: str, ranks: int) -> list[NetworkLog]:
    """Say what each rank heard; the first is this process. Raises RunError if another one fails."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        how = ranks, f"{folder}/store", device_type
        others = []
        for rank in range(1, ranks):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_other, args=(there, rank, *how), daemon=True)
            process.start()
            there.close()
            others.append((here, process))
        own = _rank(0, *how)
        return [
            own,
            *(NetworkLog.from_text(received(pipe, [process], _limit(device_type))) for pipe, process in others),
        ]


def _limit(device_type: str) -> timedelta:
    return timedelta(seconds=LIMIT_S * RANKS_WAIT[device_type])


def _other(pipe: Connection, rank: int, ranks: int, store: str, device_type: str) -> None:
    pipe.send(_rank(rank, ranks, store, device_type).to_text())


def _rank(rank: int, ranks: int, store: str, device_type: str) -> NetworkLog:
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if device_type == "cuda" else torch.device("cpu")
    for name in [name for name in os.environ if name.startswith("NCCL_DEBUG")]:
        del os.environ[name]  # a site's would keep the network from being named
    heard = listen(backend_of(device), os.environ)
    launch = Launch(rank, ranks, rank, "ci/gpu", "127.0.0.1", 0)
    init_process_group(launch, device, _limit(device_type), dist.FileStore(store, ranks))
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    if total.item() != ranks:
        raise RunError(f"{ranks} ranks added up ones to {total.item():g}.")
    found = heard()
    dist.barrier()
    dist.destroy_process_group()
    return found
