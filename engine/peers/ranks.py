"""The ranks of a contest: started on this machine, one process each with gloo and a limit on the time of all, or those
that a launcher has started.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from engine.comm.launch import Launch
from engine.errors import EngineError, RunError
from engine.peers.contest import Case, Contest, Measured

LEAVE_S = 10
COLLECTIVE_TIMEOUT = timedelta(minutes=5)


def join_ranks(launch: Launch, contests: Sequence[Contest], case: Case) -> Iterator[Measured]:
    """Take part, as one of a launcher's processes, in each contest. What this rank measured."""
    import torch

    from engine.comm.launch import init_process_group

    return _take_part(lambda: init_process_group(launch, torch.device("cpu"), COLLECTIVE_TIMEOUT), contests, case)


def _take_part(connect: Callable[[], None], contests: Sequence[Contest], case: Case) -> Iterator[Measured]:
    """Measure each contest on the ranks that connect() brings together, which then part."""
    import torch
    import torch.distributed as dist

    from engine.comm.funnel import Comm
    from engine.measure.memory import keep_freed_memory
    from engine.measure.recorder import Recorder
    from engine.peers.alternate import measure

    keep_freed_memory()  # as `engine train` does
    torch.set_num_threads(case.threads)
    connect()
    for contest in contests:
        comm = Comm(contest.grid, timeout=COLLECTIVE_TIMEOUT, recorder=Recorder())
        yield measure(comm, contest, case)
        comm.barrier()
    dist.destroy_process_group()


def run_ranks(contest: Contest, case: Case) -> Measured:
    """Run one contest; what its rank 0 measured. Raises RunError if a rank fails or time runs out."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes: dict[Connection, SpawnProcess] = {}
        for rank in range(contest.grid.size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(there, f"{folder}/store", rank, contest, case), daemon=True)
            process.start()
            there.close()
            processes[here] = process
        try:
            measured = _first_measured(list(processes), contest.name, case.timeout_s)
            for process in processes.values():
                process.join(LEAVE_S)
            return measured
        finally:
            for process in processes.values():
                process.kill()  # nothing to a process that has ended
                process.join()


def _first_measured(pipes: list[Connection], name: str, timeout_s: float) -> Measured:
    """What rank 0, whose pipe is the first, sent, once every rank has sent something."""
    deadline = time.monotonic() + timeout_s
    received: dict[Connection, Measured] = {}
    while len(received) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in received], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RunError(f"The comparison with {name} did not end within {timeout_s:g} s: raise --timeout.")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                outcome = pipe.recv()
            except EOFError:
                raise RunError(
                    f"Rank {pipes.index(pipe)} of the comparison with {name} died: is memory short for two models?"
                ) from None
            if isinstance(outcome, str):
                raise RunError(outcome)
            received[pipe] = outcome
    return received[pipes[0]]


def _rank(pipe: Connection, store: str, rank: int, contest: Contest, case: Case) -> None:
    """The life of one rank: sends a Measured, or the reason why there is none."""
    os.environ["OMP_NUM_THREADS"] = str(case.threads)  # before torch is loaded
    size = contest.grid.size
    try:
        import torch.distributed as dist

        def connect() -> None:
            met = dist.FileStore(store, size)
            dist.init_process_group("gloo", store=met, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)

        for measured in _take_part(connect, [contest], case):
            pipe.send(measured)
    except EngineError as error:
        pipe.send(str(error))
    except Exception:
        pipe.send(f"Rank {rank} of the comparison with {contest.name} failed:\n{traceback.format_exc()}")
