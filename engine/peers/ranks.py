"""Ranks of a comparison, which are started on this machine, one process each with a limit on the time of all, or by a
launcher.
"""

import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Final

from engine.comm.launch import Launch
from engine.errors import EngineError, RunError, first_line
from engine.loading import loading
from engine.output import log_to_stderr
from engine.peers.apart import parts_in_a_launch, put_together
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.memory import Room, bytes_of_gpu, choose_apart
from engine.peers.watchdog import At, Turn, nobody, start
from engine.reporter import Reporter
from engine.result.schema import Memory
from engine.result.schema.machine import Bindings, Transport
from engine.result.schema.peers import SIDES, PeerContest, PeersResult, SideName

if TYPE_CHECKING:
    import torch.distributed as dist

    from engine.comm.funnel import Comm

log = logging.getLogger(__name__)

OWN: Final = "spawn"
"""How ranks are started here, and the launcher's name in the record: each loads all anew, and no two lay out their
memory alike.
"""
LEAVE_S = 10


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as rank 0 knows it; what isn't the contest's is of all ranks."""

    contest: PeerContest
    memory: Memory
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    transport: Transport | None
    peak_flops_per_s: float | None = None
    """Rate matrix products reached on each rank, all at once, where that was asked for."""
    clocks: tuple[tuple[str, float], ...] = ()
    apart: bool = False
    """Whether its sides were measured one after the other."""
    bindings: Bindings | None = None
    """Where the ranks were bound."""


def take_part(
    launch: Launch,
    comparisons: Sequence[Comparison],
    case: Case,
    *,
    store: "dist.Store | None" = None,
    reporter: Reporter[PeersResult] | None = None,
    names: Sequence[SideName] = SIDES,
    at: At = nobody,
) -> Iterator[Job | Unavailable]:
    """Take part in each comparison as one of the ranks of a launch, who meet first and part at the end.

    store: where they meet, instead of at the master. reporter: fails if a turn lasts too long. names: of the sides to
    measure. at: called with each turn, where there is no reporter. What matrix products reach is measured before the
    first comparison that is run.
    """
    with loading():
        import torch

        from engine.comm.launch import take_device
        from engine.comm.meeting import all_ranks
        from engine.measure.memory import forget_peak, give_memory_back
        from engine.measure.recorder import Recorder
        from engine.peers.alternate import measure, watch_turns
        from engine.peers.ours import connect
        from engine.precision import DTYPES
        from engine.training.gathered import everyones, joint_peak, roster

    device = take_device(case.device, launch, case.threads)

    def room(comm: "Comm") -> Room:
        """Return that of the smallest GPU of all ranks, where no other is given."""
        memory = case.device_memory
        if memory is None and device.type == "cuda":
            memory = float(comm.gather_rows(torch.tensor([bytes_of_gpu(device.index)], dtype=torch.float64)).min())
        return Room(device.type, memory, case.node_memory)

    def run(comparison: Comparison, comm: "Comm", at: At) -> Job | Unavailable:
        at(start(case))
        try:
            one = choose_apart(comparison, case, room(comm))
            peak = joint_peak(comm, DTYPES[case.precision]) if case.measure_peak else None
            forget_peak(device)
            both = one.apart and len(names) == len(SIDES)
            parts: list[PeerContest] = []
            for some, rounds in parts_in_a_launch(case.rounds) if both else [(names, case.rounds)]:
                if parts:
                    give_memory_back(device)  # the other side's
                parted = one.breakdown and len(parts) < len(SIDES)  # each side once, though ours comes back
                settings = replace(one, rounds=rounds, breakdown=parted)
                parts.append(measure(comm, comparison, settings, some, launch, at))
            contest = put_together(comparison, case, parts) if both else parts[0]
        except Unavailable as lacking:
            return lacking
        ranks = everyones(comm, met.read_network)
        hosts, devices, clocks = tuple(ranks.hosts), tuple(ranks.devices), tuple(ranks.clocks)
        return Job(contest, ranks.memory, hosts, devices, ranks.transport, peak, clocks, bool(one.apart), met.bindings)

    with all_ranks(
        launch,
        device,
        case.collective_timeout,
        store,
        meeting_s=case.meeting_timeout_s,
        warns=launch.launcher != OWN,  # whose many jobs would each say so
    ) as met:
        if reporter is not None:
            reporter.met = True
        for comparison in comparisons:
            recorder = Recorder.on(device, breakdown=False, alone=comparison.grid.size == 1)
            comm = connect(comparison.grid, case, device, recorder)
            if reporter is not None and reporter.roster is None:
                reporter.roster = roster(comm)
            with watch_turns(comm, comparison, case, reporter.fail) if reporter else nullcontext(at) as begin:
                found = run(comparison, comm, begin)
                yield found
                if isinstance(found, Job):
                    case = replace(case, measure_peak=False)  # once is enough
                comm.barrier()


def run_ranks(comparison: Comparison, case: Case, names: Sequence[SideName] = SIDES) -> Job:
    """Run one comparison, or those sides of it, on ranks of its own; returns what its rank 0 knows.

    Raises RunError if a rank fails or a turn lasts too long, Unavailable for a peer that can't be run here.
    """
    context = multiprocessing.get_context(OWN)
    with tempfile.TemporaryDirectory() as folder:
        processes: dict[Connection, SpawnProcess] = {}
        for rank in range(comparison.grid.size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(there, f"{folder}/store", rank, comparison, case, names), daemon=True
            )
            process.start()
            there.close()
            processes[here] = process
        try:
            job = _first_job(list(processes), comparison.name, start(case))
            for process in processes.values():
                process.join(LEAVE_S)
            return job
        finally:
            for process in processes.values():
                process.kill()  # nothing to a process that has ended
                process.join()


def _first_job(pipes: list[Connection], name: str, first: Turn) -> Job:
    """Receive what rank 0, whose pipe is the first, sends, once every rank has sent more than its turns."""
    turns, latest, deadline = dict.fromkeys(pipes, first), first, time.monotonic() + first.limit_s
    received: dict[Connection, Job] = {}
    while len(received) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in received], max(0.0, deadline - time.monotonic()))
        if not ready:
            where = ", ".join(f"rank {pipes.index(one)} at {turns[one].at}" for one in pipes if one not in received)
            raise RunError(
                f"Nothing has moved for {latest.limit_s:g} s in the comparison with {name}, {where}: raise "
                f"{latest.option} if that is its pace."
            )
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                outcome = pipe.recv()
            except EOFError:
                raise RunError(
                    f"Rank {pipes.index(pipe)} of the comparison with {name} died: is memory short for two models?"
                ) from None
            if isinstance(outcome, Turn):
                turns[pipe], latest, deadline = outcome, outcome, time.monotonic() + outcome.limit_s
                continue
            if isinstance(outcome, Exception):
                raise outcome
            received[pipe] = outcome
    return received[pipes[0]]


def _rank(
    pipe: Connection, store: str, rank: int, comparison: Comparison, case: Case, names: Sequence[SideName]
) -> None:
    """Live as one rank: send a Job, or the reason why there is none."""
    os.environ["OMP_NUM_THREADS"] = str(case.threads)  # before torch is loaded
    log_to_stderr(rank)
    size = comparison.grid.size
    try:
        with loading():
            import torch.distributed as dist

        launch = Launch(rank, size, rank, OWN, "127.0.0.1", 0)
        for job in take_part(launch, [comparison], case, store=dist.FileStore(store, size), names=names, at=pipe.send):
            pipe.send(job)
    except Unavailable as error:
        pipe.send(error)
    except Exception as error:
        reason = first_line(error)
        if not isinstance(error, EngineError):
            log.error("", exc_info=error)
            reason = f"Rank {rank} of the comparison with {comparison.name} failed: {reason}"
        pipe.send(RunError(reason))
