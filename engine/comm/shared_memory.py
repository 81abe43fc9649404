"""Memory that the ranks of one host share: a channel for CPUs on which what one rank has written the others read.

gloo sends between two ranks of a host through the kernel's network stack, by threads that take the ranks' own cores.
Here a collective is begun by writing its input where the others can read it, and ended by reading theirs: it takes no
thread, and what lies between is the rank's own. A message through a pipe says that an input is written; who waits for
it sleeps, and notices when the writer has ended.
"""

import mmap
import os
import secrets
import select
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import Channel, all_gather
from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.contact import Line
from engine.comm.roster import own_row
from engine.measure.recorder import Flight

SWITCH = "PAR4D_SHARED_MEMORY"
"""An environment variable of all ranks: with 0 they leave everything to gloo."""
MOST_RANKS = 16
"""Of a channel: every two of them have two pipes."""
SMALL_BYTES = 16384
"""Up to here each rank adds up all inputs, which takes one message; of larger ones it adds up its own part for all."""
LEAST_BLOCK = 4096
MEETING_S = 10.0
MESSAGE = struct.Struct("=QQQd")
"""A collective's number and stage, how many collectives its sender has done with, where its input is, and when it was
written."""


def shared_or(gloo: Channel, group: dist.ProcessGroup, line: Line, timeout: timedelta) -> Channel:
    """The channel of these ranks: through shared memory if they are few and of one host, else gloo's. Collective.

    timeout: of every wait for another rank.
    """
    ranks, own = dist.get_world_size(group), dist.get_rank(group)
    if ranks > MOST_RANKS or not hasattr(os, "memfd_create") or os.environ.get(SWITCH) == "0":
        return gloo
    with _Door() as door, line.held():
        rows = torch.empty(ranks, 2, dtype=torch.int64)
        all_gather(rows, torch.tensor([[_host(), door.number]]), group=group)
        hosts, doors = rows.t().tolist()
        if len(set(hosts)) > 1:
            return gloo
        met = torch.ones(1)
        try:
            memory, neighbours = door.meet(doors, own, timeout.total_seconds())
        except OSError:
            met.zero_()
        dist.all_reduce(met, op=dist.ReduceOp.MIN, group=group)
    if not met.item():
        return gloo
    return SharedMemoryChannel(gloo, memory, neighbours, own, replace(line, backend="shared memory"))


class SharedMemoryChannel:
    """Ranks of one host. All of them begin their collectives in one order, and wait for them in one order."""

    def __init__(
        self, gloo: Channel, memory: "_Memory", neighbours: Sequence["_Neighbour"], own: int, line: Line
    ) -> None:
        """neighbours: the other ranks of the group, in order. gloo: for what passes between two of them."""
        self._gloo, self._memory, self._neighbours, self._own, self._line = gloo, memory, neighbours, own, line
        self._ranks = len(neighbours) + 1
        self._begun = 0
        self._unfinished: dict[int, None] = {}

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, flight: Flight | None, *, blocking: bool
    ) -> Callable[[], None]:
        """See Channel.start."""
        if kind in POINT_TO_POINT:
            return self._gloo.start(kind, source, target, peer, flight, blocking=blocking)
        number, self._begun = self._begun, self._begun + 1
        self._unfinished[number] = None
        with self._line.held():
            for neighbour in self._neighbours:
                neighbour.hear()
            self._memory.free(min(self._done_with(), *(neighbour.done_with for neighbour in self._neighbours)))
            place = self._memory.take(number, source.numel() * source.element_size())
            self._memory.view(place, source).copy_(source)
            wrote = self._tell(number, 0, place)

        def finish() -> None:
            asked = time.perf_counter()
            with self._line.held():
                last, inputs = self._written(number, 0, place, source)
                if flight is not None and last < asked:  # else it ends with its result, which is made here
                    flight.end(max(wrote, last))
                self._carry_out(kind, number, place, inputs, target)
            del self._unfinished[number]

        return finish

    def _carry_out(self, kind: Kind, number: int, place: int, inputs: list[Tensor], target: Tensor) -> None:
        if kind is Kind.ALL_GATHER:
            for piece, part in zip(target.chunk(self._ranks), inputs, strict=True):
                piece.copy_(part)
        elif kind is Kind.REDUCE_SCATTER:
            _add([whole.chunk(self._ranks)[self._own] for whole in inputs], torch.add, target)
        else:
            combine = torch.add if kind is Kind.ALL_REDUCE else torch.maximum
            if self._ranks == 2 or target.numel() * target.element_size() <= SMALL_BYTES:
                _add(inputs, combine, target)
                return
            pieces = target.tensor_split(self._ranks)
            mine = [whole.tensor_split(self._ranks)[self._own] for whole in inputs]
            _add(mine, combine, pieces[self._own])
            mine[self._own].copy_(pieces[self._own])
            self._tell(number, 1, place)
            _, sums = self._written(number, 1, place, target)
            for rank, piece in enumerate(pieces):
                piece.copy_(sums[rank].tensor_split(self._ranks)[rank])

    def _tell(self, number: int, stage: int, place: int) -> float:
        """That an input is written; returns since when."""
        now = time.perf_counter()
        message = MESSAGE.pack(2 * number + stage, self._done_with(), place, now)
        for neighbour in self._neighbours:
            neighbour.tell(message)
        return now

    def _done_with(self) -> int:
        """How many collectives this rank has finished, up to the first that it has not."""
        return next(iter(self._unfinished), self._begun)

    def _written(self, number: int, stage: int, place: int, like: Tensor) -> tuple[float, list[Tensor]]:
        """What each rank has written, in their order, once all have; and when the last of the others had."""
        told = [neighbour.wait_for(2 * number + stage) for neighbour in self._neighbours]
        views = [one.memory.view(where, like) for one, (where, _) in zip(self._neighbours, told, strict=True)]
        views.insert(self._own, self._memory.view(place, like))
        return max(when for _, when in told), views


def _add(parts: Sequence[Tensor], combine: Callable[..., Tensor], out: Tensor) -> None:
    """In the order of the ranks, so that all that do it get the same."""
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)


class _Shared:
    """Memory of one rank, mapped by this one. It takes room where it is written to, not before."""

    SIZE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, self.SIZE)

    def view(self, place: int, like: Tensor) -> Tensor:
        """As many elements from there on."""
        return torch.frombuffer(self._map, dtype=like.dtype, count=like.numel(), offset=place)


class _Memory(_Shared):
    """This rank's own, in blocks, each in use until all others have done with what was written to it."""

    def __init__(self, file: int) -> None:
        os.ftruncate(file, self.SIZE)
        super().__init__(file)
        self._end = 0
        self._free: dict[int, list[int]] = defaultdict(list)
        self._used: deque[tuple[int, int, int]] = deque()

    def take(self, number: int, num_bytes: int) -> int:
        """The place of a free block for the collective of this number. Raises RuntimeError if there is none."""
        size = max(LEAST_BLOCK, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        if not free:
            if self._end + size > self.SIZE:
                raise RuntimeError(f"no room for {num_bytes} bytes in memory that ranks share")
            free.append(self._end)
            self._end += size
        place = free.pop()
        self._used.append((number, size, place))
        return place

    def free(self, before: int) -> None:
        """The blocks of collectives of smaller numbers."""
        while self._used and self._used[0][0] < before:
            _, size, place = self._used.popleft()
            self._free[size].append(place)


class _Neighbour:
    """Another rank: its memory, and a pipe each way. done_with: how many of its collectives it has finished reading."""

    def __init__(self, memory: _Shared, listening: int, speaking: int, timeout_s: float) -> None:
        self.memory, self._listening, self._speaking, self._timeout_s = memory, listening, speaking, timeout_s
        os.set_blocking(speaking, False)
        self._heard, self._room = select.poll(), select.poll()
        self._heard.register(listening, select.POLLIN)
        self._room.register(speaking, select.POLLOUT)
        self.done_with = 0
        self._told: dict[int, tuple[int, float]] = {}

    def tell(self, message: bytes) -> None:
        """Raises RuntimeError if the other has ended, or has not listened for too long."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                os.write(self._speaking, message)
                return
            except BlockingIOError:
                self._await(self._room, deadline)
            except OSError as error:
                raise RuntimeError("the other end is closed") from error

    def hear(self) -> None:
        """Take in what it has said so far."""
        while self._heard.poll(0) and self._read():
            pass

    def wait_for(self, key: int) -> tuple[int, float]:
        """Where it has written this, and when. Raises RuntimeError if it has ended, or doesn't answer in time."""
        deadline = time.monotonic() + self._timeout_s
        while key not in self._told:
            self._await(self._heard, deadline)
            if not self._read():
                raise RuntimeError("the other end is closed")
        return self._told.pop(key)

    def _await(self, something: select.poll, deadline: float) -> None:
        if not something.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise RuntimeError(f"no answer within {self._timeout_s:g} s")

    def _read(self) -> bool:
        """False at the end of the pipe. A message is written as a whole, so as many are read."""
        said = os.read(self._listening, 1024 * MESSAGE.size)
        for key, done_with, place, when in MESSAGE.iter_unpack(said):
            self._told[key] = place, when
            self.done_with = max(self.done_with, done_with)
        return bool(said)

    def __del__(self) -> None:
        os.close(self._listening)
        os.close(self._speaking)


class _Door:
    """Where a rank is found by the others of its host while they meet: a socket that leaves nothing behind."""

    def __init__(self) -> None:
        self.number = secrets.randbits(62)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(_address(self.number))
        self._socket.listen(MOST_RANKS)
        self._socket.settimeout(MEETING_S)

    def __enter__(self) -> "_Door":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def meet(self, doors: Sequence[int], own: int, timeout_s: float) -> tuple[_Memory, list[_Neighbour]]:
        """This rank's memory and the others, in order. Raises OSError if one isn't reached.

        doors: of all ranks. timeout_s: for what is asked of them later.
        """
        with ExitStack() as stack:
            file = os.memfd_create("par4d")
            stack.callback(os.close, file)
            memory = _Memory(file)
            calls: dict[int, socket.socket] = {}
            for rank, door in enumerate(doors[:own]):
                calls[rank] = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                calls[rank].settimeout(MEETING_S)
                calls[rank].connect(_address(door))
                calls[rank].send(bytes([own]))
            while len(calls) < len(doors) - 1:
                call, _ = self._socket.accept()
                stack.enter_context(call).settimeout(MEETING_S)
                if struct.unpack("3i", call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] == os.getuid():
                    calls[call.recv(1)[0]] = call
            return memory, [_exchange(calls[rank], file, timeout_s) for rank in sorted(calls)]


def _exchange(call: socket.socket, memory: int, timeout_s: float) -> _Neighbour:
    """Each gives the other its memory and the end of a pipe."""
    theirs, speaking = os.pipe()
    try:
        socket.send_fds(call, [b"\0"], [memory, theirs])
    finally:
        os.close(theirs)
    _, (file, listening), *_ = socket.recv_fds(call, 1, 2)
    try:
        return _Neighbour(_Shared(file), listening, speaking, timeout_s)
    finally:
        os.close(file)


def _address(number: int) -> str:
    """In Linux's abstract namespace."""
    return f"\0par4d-memory-{number:x}"


def _host() -> int:
    """Of a rank's host and of its network: containers may share one and not the other."""
    words = f"{own_row()[0]} {Path('/proc/self/ns/net').readlink()}"
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "little", signed=True)
