"""MPI: messages between ranks that its own launcher has started (axonn-ipdps22, Section IV), and collectives.

A message is an Isend and an Irecv on the tensors' own memory, a device's where MPI reads it. mpi4py is loaded at the
first use.
"""

import atexit
import ctypes
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from engine.comm.backend import Channel, ChannelSource, PendingMessage
from engine.comm.collective import OF_MESSAGES, POINT_TO_POINT, Kind, Lane
from engine.comm.contact import LostContact, Route
from engine.comm.launch import Launch
from engine.comm.launchers import has_mpi
from engine.comm.meeting import MEETING_S
from engine.errors import RunError, UsageError, first_line
from engine.grid import Axis, Grid
from engine.measure.pending import Pending

READS_DEVICES = "PAR4D_MPI_CUDA"
"""Environment variable, 1 or 0, that overrides MPI's own word on whether it reads device memory."""
NUMBERS = {
    torch.float64: "DOUBLE",
    torch.float32: "FLOAT",
    torch.int64: "INT64_T",
    torch.int32: "INT32_T",
    torch.uint8: "UINT8_T",
}
"""Numbers that MPI adds up. It has no half precision."""
MISSING = (
    "MPI takes mpi4py, an MPI library and ranks that its own launcher has started: pip install 'mpi4py>=4', and take "
    "mpirun or srun --mpi=pmix instead of torchrun"
)
SPIN_S, PAUSE_S = 0.01, 5e-5
"""Time for which a waiting rank polls at once, and its pause after each later poll, when the core may be another's."""
LOOK_S, IDLE_S = 1e-3, 1e-2
"""Pauses of the thread between two calls of MPI: with something under way, and without."""
LEAVE_S = 10.0
"""Longest wait for the thread's end."""


class Library:
    """MPI in this process, from its start to the exit.

    The end waits for all ranks. A rank that leaves without it, as contact was lost, is an error to the launcher, which
    ends the others.
    """

    def __init__(self) -> None:
        try:
            import mpi4py

            mpi4py.rc.finalize = False
            mpi4py.rc.thread_level = "serialized"
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # the latter where it finds no MPI
            raise UsageError(f"{MISSING} ({first_line(error)}).") from None
        self.mpi: Any = MPI
        self.progress = Progress(MPI)
        self.patience_s = MEETING_S
        """longest wait for the other ranks at the end"""
        atexit.register(self.end)

    def reads_devices(self) -> bool:
        """Return whether MPI takes device memory, by Open MPI's and MPICH's own query."""
        if override := os.environ.get(READS_DEVICES):
            return override != "0"
        query = f"MPIX_Query_{'hip' if torch.version.hip else 'cuda'}_support"
        asked = [getattr(ctypes.CDLL(file), query, None) for file in (None, self.mpi.__file__)]
        return os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1" or any(
            ask is not None and ask() == 1 for ask in asked
        )

    def memory(self, tensor: Tensor) -> Any:
        return self.mpi.buffer.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size())

    def end(self) -> None:
        """End MPI, once all ranks are about to: it would wait for ever for a rank that is stopped."""
        progress, world = self.progress, self.mpi.COMM_WORLD
        route = Route(world.rank, "at its end", range(world.size), "MPI")
        with suppress(LostContact):
            if not progress.lost:
                with progress.calling(route):
                    all_here = MpiRequest(progress, world.Ibarrier(), route, self.patience_s)
                all_here()
        progress.end()
        if not progress.lost:
            self.mpi.Finalize()


@lru_cache(maxsize=1)
def library() -> Library:
    """Load MPI. Raises UsageError where it isn't there or its launcher hasn't started this rank."""
    if not has_mpi(os.environ):
        raise UsageError(f"{MISSING}.")
    return Library()


def check(launch: Launch, device: torch.device) -> None:
    """Raise UsageError unless MPI is there for all ranks of this launch, and for their device. Collective."""
    found = library()
    world = found.mpi.COMM_WORLD
    if (world.rank, world.size) != (launch.rank, launch.world_size):
        raise UsageError(
            f"MPI has this as rank {world.rank} of {world.size}, {launch.launcher} as rank {launch.rank} of "
            f"{launch.world_size}: take the mpirun of the MPI that mpi4py loads, or srun with its --mpi."
        )
    if found.mpi.Query_thread() < found.mpi.THREAD_SERIALIZED:
        raise UsageError(
            f"This MPI ({found.mpi.get_vendor()[0]}) takes calls of one thread only, while another has to carry on "
            "messages here: take one that is built for threads."
        )
    if device.type == "cuda" and not found.reads_devices():
        raise UsageError(
            f"This MPI ({found.mpi.get_vendor()[0]}) doesn't say that it reads device memory: take one that is "
            f"CUDA-aware, or set {READS_DEVICES}=1 where it does so all the same."
        )


class MpiGroups:
    """Channels over MPI. ranks: as in ProcessGroups."""

    def __init__(
        self, grid: Grid, device: torch.device, timeout: timedelta, ranks: Sequence[int] | None = None
    ) -> None:
        self._library, self._timeout = library(), timeout
        self._library.patience_s = timeout.total_seconds()
        self._library.progress.begin(device)
        self._world = self._library.mpi.COMM_WORLD
        self._ranks = range(self._world.size) if ranks is None else ranks
        if len(self._ranks) != grid.size:
            raise RuntimeError(f"Grid {grid} has {grid.size} ranks, MPI {len(self._ranks)}.")
        self.rank = self._ranks.index(self._world.rank)

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> "MpiChannel":
        """Make a communicator of its own, so that no other channel's messages are taken for this one's."""
        in_the_job = [self._ranks[member] for member in members]
        route = Route(self._world.rank, f"on axis {axis}", in_the_job, "MPI")
        with self._library.progress.calling(route):
            among = self._world.Create_group(self._world.Get_group().Incl(in_the_job))
        return MpiChannel(self._library, among, route, self._timeout)


class MessagesByMpi:
    """Channels of which those for messages go over MPI, as in axonn-ipdps22, and all others elsewhere."""

    def __init__(self, collectives: ChannelSource, grid: Grid, device: torch.device, timeout: timedelta) -> None:
        self.rank = collectives.rank
        self._collectives, self._messages = collectives, MpiGroups(grid, device, timeout)

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        return (self._messages if lane in OF_MESSAGES else self._collectives).channel(axis, lane, members)


class MpiChannel:
    """Communicator of MPI. A message's tag, of its number and dtype, shows that it is the one that is due."""

    def __init__(self, library: Library, among: Any, route: Route, timeout: timedelta) -> None:
        self._library, self._among, self._route, self._timeout_s = library, among, route, timeout.total_seconds()
        self._messages: Counter[tuple[Kind, int]] = Counter()

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if source.is_cuda:  # MPI knows of no stream: what was given to this one has to be over
            torch.cuda.current_stream(source.device).synchronize()
        mpi, due = self._library.mpi, None
        with self._library.progress.calling(self._route):
            if peer is not None and kind in POINT_TO_POINT:
                tag = _tag(self._messages[kind, peer], source.dtype)
                self._messages[kind, peer] += 1
                given = [self._library.memory(source), mpi.BYTE]
                if kind is Kind.SEND:
                    request = self._among.Isend(given, peer, tag)
                else:
                    request, due = self._among.Irecv(given, peer, mpi.ANY_TAG), (tag, target.nbytes)
            else:
                request = self._collective(kind, source, target, peer)
            buffers = (source, target)
            return MpiRequest(self._library.progress, request, self._route, self._timeout_s, pending, due, buffers)

    def _collective(self, kind: Kind, source: Tensor, target: Tensor, root: int | None) -> Any:
        mpi, memory = self._library.mpi, self._library.memory
        if kind is Kind.ALL_GATHER:
            return self._among.Iallgather([memory(source), mpi.BYTE], [memory(target), mpi.BYTE])
        if kind is Kind.BROADCAST:
            return self._among.Ibcast([memory(target), mpi.BYTE], root)
        if source.dtype not in NUMBERS:
            raise RunError(f"MPI adds up no {source.dtype}: take float32 or float64, or another back end.")
        number = getattr(mpi, NUMBERS[source.dtype])
        if kind is Kind.REDUCE_SCATTER:
            return self._among.Ireduce_scatter_block([memory(source), number], [memory(target), number])
        if kind is Kind.REDUCE:
            own = [memory(target), number]
            given, taken = (mpi.IN_PLACE, own) if self._among.rank == root else (own, None)
            return self._among.Ireduce(given, taken, mpi.SUM, root)
        op = mpi.SUM if kind is Kind.ALL_REDUCE else mpi.MAX
        return self._among.Iallreduce(mpi.IN_PLACE, [memory(target), number], op)


def _tag(number: int, dtype: torch.dtype) -> int:
    """Return a message's tag, of the 15 bits that every MPI has.

    >>> _tag(0, torch.float32) == _tag(1, torch.float32)
    False
    """
    return zlib.crc32(f"{number} {dtype}".encode()) & 0x7FFF


class Progress:
    """MPI's calls of this process, one at a time, and the thread that makes some while anything is under way.

    Most MPIs progress only while a rank calls them, and a large message takes several calls of its sender's (a
    rendezvous), even after MPI has said that the message is sent: Open MPI keeps what a socket has no room for. Without
    the thread it would stand still while the sender waits for a collective over gloo, a store, a file or a device; and
    so would its receiver, for which the sender may be waiting.

    mpi: mpi4py's module, initialised for threads that call it one at a time (MPI_THREAD_SERIALIZED).
    """

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.lock = threading.Condition()
        """held during each call of MPI"""
        self.lost = False
        """whether a rank has not answered, so that MPI's own end would wait for it for ever"""
        self._under_way: dict[MpiRequest, None] = {}
        self._thread: threading.Thread | None = None
        self._ending = False

    def begin(self, device: torch.device) -> None:
        """Start the thread, unless it runs. device: whose memory MPI reads and writes."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._carry_on, args=(device,), name="mpi", daemon=True)
            self._thread.start()

    @contextmanager
    def calling(self, route: Route) -> Iterator[None]:
        try:
            with route.guard(), self.lock:
                yield
        except LostContact:
            self.lost = True
            raise

    def add(self, one: "MpiRequest") -> None:
        """Poll this request, too, until it is over. The caller holds the lock."""
        if not self._under_way:
            self.lock.notify()
        self._under_way[one] = None

    def remove(self, one: "MpiRequest") -> None:
        del self._under_way[one]

    def end(self) -> None:
        """End the thread, as MPI must not be called after its end."""
        with self.lock:
            self._ending = True
            self.lock.notify()
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def _carry_on(self, device: torch.device) -> None:
        if device.type == "cuda":  # MPI copies within the context that is current on the thread, of which it has none
            torch.cuda.set_device(device)
            torch.cuda.current_stream(device).query()
        with self.lock:
            while not self._ending:
                for one in [*self._under_way]:
                    one.look()
                if not self._under_way:
                    with suppress(self.mpi.Exception):  # which the next message tells, too
                        self.mpi.COMM_WORLD.Iprobe()
                self.lock.wait(LOOK_S if self._under_way else IDLE_S)


class MpiRequest(PendingMessage):
    """Request that MPI has begun.

    due: tag and size of a message that is received. buffers: memory that MPI reads or writes until it is over.
    """

    def __init__(
        self,
        progress: Progress,
        request: Any,
        route: Route,
        timeout_s: float,
        pending: Pending | None = None,
        due: tuple[int, int] | None = None,
        buffers: tuple[Tensor, ...] = (),
    ) -> None:
        """Add the request to progress. The caller holds the lock."""
        self._progress, self._request, self._route, self._timeout_s = progress, request, route, timeout_s
        self._pending, self._due, self._buffers = pending, due, buffers
        self._status = progress.mpi.Status()
        self._over, self._error = False, None  # type: bool, Exception | None
        progress.add(self)

    def __call__(self) -> None:
        """Wait until it is over. Raises LostContact, and ValueError for a message that isn't the one that is due."""
        begun = time.monotonic()
        while not self.arrived():
            waited_s = time.monotonic() - begun
            if waited_s > self._timeout_s:
                self._progress.lost = True
                raise LostContact(self._route, TimeoutError(f"no answer within {self._timeout_s:g} s"))
            if waited_s < SPIN_S:
                os.sched_yield()
            else:
                time.sleep(PAUSE_S)
        status, unit = self._status, self._progress.mpi.BYTE
        if self._due is not None and self._due != (status.tag, status.Get_count(unit)):
            raise ValueError("A message came that isn't the one to be received.")

    def arrived(self) -> bool:
        """Return whether it is over. Raises as waiting for it does."""
        if not self._over:
            with self._progress.lock:
                self.look()
        if self._error is not None:
            raise self._error
        if self._over and self._pending is not None:
            self._pending.end()
            self._pending = None
        return self._over

    def look(self) -> None:
        if self._over:
            return
        mpi = self._progress.mpi
        try:
            self._over = bool(self._request.Test(self._status))
        except mpi.Exception as error:
            self._over, self._error = True, self._meaning(error)
        if self._over:
            self._progress.remove(self)

    def _meaning(self, error: Exception) -> Exception:
        if error.Get_error_class() == self._progress.mpi.ERR_TRUNCATE:  # type: ignore[attr-defined]
            return ValueError("A message came that is longer than the one to be received.")
        self._progress.lost = True
        return LostContact(self._route, error)
