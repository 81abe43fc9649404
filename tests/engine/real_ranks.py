"""Real processes for tests: forked from a clean server that has torch loaded, each with a time-out."""

import gc
import multiprocessing
import multiprocessing.forkserver
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from waiting import LONG_S

from engine.grid import Grid

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.run"),
        *("engine.training.run", "engine.cli.main", "engine.peers.ranks"),
        "reframe.frontend.cli",  # of runs that test suites start
        "pytest",  # which the file of a test imports
    ]
)


def start_server() -> None:
    """Start the server now, for code that would start one that has less loaded."""
    multiprocessing.forkserver.ensure_running()


def _send(pipe: Connection, status: str, value: Any) -> None:
    """Send by value: the pipe itself would share a tensor's memory, which is lost if this process ends early."""
    pipe.send_bytes(pickle.dumps((status, value)))


def _rank(pipe: Connection, store: str, grid: Grid, rank: int, work: Callable[..., Any], args: tuple) -> None:
    gc.freeze()  # what the server has loaded: to look for garbage in it would copy it
    import torch
    import torch.distributed as dist

    from engine.comm.funnel import Comm
    from engine.measure.recorder import Recorder

    torch.set_num_threads(1)
    limit = timedelta(seconds=LONG_S)
    try:
        dist.init_process_group(
            "gloo", store=dist.FileStore(store, grid.size), rank=rank, world_size=grid.size, timeout=limit
        )
        _send(pipe, "ok", work(Comm(grid, timeout=limit, recorder=Recorder()), *args))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        _send(pipe, "error", traceback.format_exc())


def take_part_again(comm: Any, contests: Sequence[Any], case: Any) -> list[Any]:
    """Return what launched ranks would be told of these contests: those of comm meet anew."""
    import torch.distributed as dist

    from engine.comm.launch import Launch
    from engine.peers.ranks import take_part

    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    launch = Launch(comm.rank, comm.grid.size, comm.rank, "test", "127.0.0.1", 0)
    return list(take_part(launch, contests, case, store=dist.PrefixStore("again", store)))


def run_processes(grid: Grid, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Run work(comm, *args) in one process a rank over gloo, all picklable; return the results in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(grid.size):
            here, there = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(
                target=_rank, args=(there, str(Path(folder) / "store"), grid, rank, work, args), daemon=True
            )
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        try:
            outcomes = []
            for rank, pipe in enumerate(pipes):
                if not wait([pipe], 2 * LONG_S):  # a collective that stands still is told before
                    raise TimeoutError(f"rank {rank} of grid {grid} did not finish in {2 * LONG_S} s")
                try:
                    outcomes.append(pickle.loads(pipe.recv_bytes()))
                except (EOFError, ConnectionResetError):
                    processes[rank].join(LONG_S)
                    outcomes.append(("error", f"it died with exit code {processes[rank].exitcode}"))
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
    for rank, (status, value) in enumerate(outcomes):
        if status == "error":
            raise AssertionError(f"rank {rank} of grid {grid} failed:\n{value}")
    return [value for _, value in outcomes]
