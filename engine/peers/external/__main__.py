"""Rank of a peer in its own environment, or of another commit of the engine, as external_side.py starts it:
python -m engine.peers.external DESCRIPTOR.

It is sent its comparison, meets the others, warms up and answers with losses and norms; then takes steps whenever it is
asked to. When nobody holds the other end of its pipe it ends, whatever it is doing.
"""

import hashlib
import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from engine.comm.launch import Launch
from engine.errors import EngineError, RunError, first_line
from engine.loading import loading
from engine.peers.comparison import Case, Comparison, Unavailable

with loading():
    import torch
    import torch.distributed as dist

    from engine.comm.launch import take_device
    from engine.comm.meeting import init_process_group
    from engine.data.sampler import batch
    from engine.measure.memory import keep_freed_memory, return_freed_memory
    from engine.peers.host_memory import peak_resident_bytes
    from engine.peers.layout import Layout
    from engine.peers.peer import ExternalPeer, StepMetrics
    from engine.peers.registry import missing_modules
    from engine.peers.shards import Sharded, count_bytes
    from engine.peers.timed_side import LocalSide, on_batches
    from engine.result import provenance
    from engine.result.provenance import CHECKOUT, git_state


def main() -> None:
    pipe = Connection(int(sys.argv[1]))
    orders: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    asked = orders.get()
    if isinstance(asked, Exception):
        pipe.send(RunError(f"The commit in {CHECKOUT} doesn't know all that is asked, so take a later one: {asked}."))
        while True:
            orders.get()  # until the pipe is closed, which ends the process
    comparison, case, launch = asked
    try:
        for answer in _answer_orders(comparison, case, launch, orders):
            pipe.send(answer)
    except Unavailable as error:
        pipe.send(error)
    except EngineError as error:
        pipe.send(RunError(str(error)))
    except Exception as error:
        logging.exception("Rank %d failed.", launch.rank)
        pipe.send(RunError(f"Rank {launch.rank} of {comparison.name} failed: {first_line(error)}"))
    orders.get()  # until the pipe is closed, which ends the process


def _listen(pipe: Connection, orders: "SimpleQueue[Any]") -> None:
    while True:
        try:
            orders.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)
        except Exception as error:
            orders.put(error)


def _answer_orders(comparison: Comparison, case: Case, launch: Launch, orders: "SimpleQueue[Any]") -> Iterator[Any]:
    """Yield the answers. launch: of the rank beside which it runs, whose place it takes among its own."""
    device = take_device(case.device, launch, case.threads)
    host, store, timeout = launch.master_addr, None, case.collective_timeout
    if launch.rank == 0:
        store = dist.TCPStore(host, 0, launch.world_size, is_master=True, wait_for_workers=False, timeout=timeout)
        yield store.port
    port = orders.get()
    store = store or dist.TCPStore(
        host, port, launch.world_size, is_master=False, wait_for_workers=False, timeout=timeout
    )
    place: dict[str, object] = {"RANK": launch.rank, "WORLD_SIZE": launch.world_size, "LOCAL_RANK": launch.local_rank}
    place |= {"MASTER_ADDR": host, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    init_process_group(launch, device, timeout, store)
    memory: dict[str, tuple[int, ...]] = {}
    if comparison.checkout:
        from engine.peers.ours import build_side  # loads what a library's environment need not have

        turns = build_side(comparison.grid, case, device)
    else:
        built: list[Built] = []

        def build() -> Callable[[], StepMetrics]:
            built.append(build_external(comparison, case, device))
            return built[0].step

        turns = LocalSide(build, device, case.warmup)
        turns.values = average_over_ranks(turns.values)
        memory = {"built_bytes": list_ranks(built[0].grown_bytes), "shard_bytes": list_ranks(built[0].shard_bytes)}
    yield turns.values
    while (order := orders.get()) is not None:
        dist.barrier()
        if isinstance(order, tuple):  # PART, and of how many steps
            turns.part(order[1])
        else:
            turns.take(order)
        yield None
    library = comparison.library
    versions = {name: version(name) for name in ("torch", library)} if library else {}
    lacks = missing_modules(library, device.type) if library else {}
    if comparison.checkout:
        versions = describe_commit(case)
    yield turns.measured().model_copy(update={"versions": versions, "without": lacks} | memory).model_dump()


def describe_commit(case: Case) -> dict[str, str]:
    """Return this commit's name, and by name what both commits of a contest are to have in common: versions of
    software, nodes of all ranks and a digest of the first batch. Collective.
    """
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, socket.gethostname())
    task, digest = case.model.task, hashlib.sha256()
    sequences = case.batch.sequences
    read = batch(task.data.synthetic(), task.batch, seed=case.seed, step=0, batch_size=sequences, rows=range(sequences))
    for name, array in sorted(read.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    shared = {"nodes": ", ".join(dict.fromkeys(everyone)), "data": digest.hexdigest()[:16]}
    return provenance.versions() | shared | {"engine": str(git_state(CHECKOUT)[0])}


@dataclass(frozen=True, slots=True)
class Built:
    """External peer of this rank, and the memory that it took to build."""

    step: Callable[[], StepMetrics]
    """Takes its next step on this rank's rows."""
    grown_bytes: int | None
    """Growth of the process's most host memory, from the imports on; None where the system doesn't tell it."""
    shard_bytes: int | None
    """What the rank holds; None where the peer doesn't tell it."""


def build_external(comparison: Comparison, case: Case, device: torch.device) -> Built:
    """Make the peer, once its ranks have met. On processors what it frees meanwhile goes back to the system."""
    assert isinstance(comparison.layout, Layout)
    layout = comparison.layout.for_batch(case.peer_batch)
    sequences = case.batch.sequences
    case = replace(case, peer_micro_batch=sequences // layout.data // layout.micro_batches)
    make = comparison.implementation()
    if device.type == "cpu":
        return_freed_memory()
    before = peak_resident_bytes()
    peer: ExternalPeer = make(case, layout, device)
    after = peak_resident_bytes()
    grown = None if before is None or after is None else after - before
    if device.type == "cpu":
        keep_freed_memory()
    shard = count_bytes(peer.list_shard()) if isinstance(peer, Sharded) else None
    step = on_batches(peer.step, case, layout.rows(peer.data_rank, sequences), device)
    return Built(step, grown, shard)


def external_step(comparison: Comparison, case: Case, device: torch.device) -> Callable[[], StepMetrics]:
    """Make the peer, once its ranks have met, and what takes its next step on this rank's rows."""
    return build_external(comparison, case, device).step


def list_ranks(value: int | None) -> tuple[int, ...]:
    """List what each rank has found; empty where one has found nothing."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return () if None in everyone else tuple(everyone)


def average_over_ranks(values: Sequence[StepMetrics]) -> list[StepMetrics]:
    """Average what ranks know. Every data rank has as many of them that know."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [tuple(value) for value in values])
    mean = [
        [_mean([pair[kind] for pair in pairs if not math.isnan(pair[kind])]) for kind in (0, 1)]
        for pairs in zip(*everyone, strict=True)
    ]
    return [StepMetrics(loss, norm) for loss, norm in mean]


def _mean(known: list[float]) -> float:
    return sum(known) / len(known) if known else math.nan


if __name__ == "__main__":
    main()
