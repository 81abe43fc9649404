"""Ranks of a host meet here, and give each other memory to read and a pipe each way. It needs Linux."""

import mmap
import os
import secrets
import select
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import torch
from torch import Tensor

from engine.comm.roster import hashed, link, own_row

MOST_RANKS = 16
"""More ranks don't become neighbours: every two of them have two pipes."""
LEAST_BLOCK = 4096
MEETING_S = 120.0
MESSAGE = struct.Struct("=QQQQ")
"""It holds a collective's number and stage, how many collectives its sender has done with, where its input is, and of
which sort it is.
"""
CLOSED = "the other end is closed"
SENT, TAKEN = 1 << 62, 1 << 63
"""With one of these, the number is that of what was written for this neighbour alone, or has been read by it."""


class Mapped:
    """It is memory of one rank, mapped by this one, and takes room where it is written to, not before."""

    SIZE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, self.SIZE)
        self._map.madvise(mmap.MADV_DONTDUMP)  # a core dump would make all of its pages
        self._map.madvise(mmap.MADV_DONTFORK)

    def view(self, place: int, like: Tensor) -> Tensor:
        """View as many elements from there on."""
        return torch.frombuffer(self._map, dtype=like.dtype, count=like.numel(), offset=place)


class Own(Mapped):
    """It is this rank's own memory in blocks, each in use until all others have done with what was written to it."""

    def __init__(self, file: int) -> None:
        os.ftruncate(file, self.SIZE)
        super().__init__(file)
        self._end = 0
        self._free: dict[int, list[int]] = defaultdict(list)
        self._used: deque[tuple[int, int, int]] = deque()

    def take(self, number: int, num_bytes: int) -> int:
        """Take a free block for the collective of this number; returns its place. Raises MemoryError if there is
        none.
        """
        size, place = self.lend(num_bytes)
        self._used.append((number, size, place))
        return place

    def free(self, before: int) -> None:
        """Free the blocks of collectives of smaller numbers."""
        while self._used and self._used[0][0] < before:
            _, *block = self._used.popleft()
            self.give_back(*block)

    def lend(self, num_bytes: int) -> tuple[int, int]:
        """Take a free block until it is given back; returns its size and place. Raises MemoryError if there is none."""
        size = max(LEAST_BLOCK, 1 << (num_bytes - 1).bit_length())
        free = self._free[size]
        if not free:
            if self._end + size > self.SIZE:
                raise MemoryError(f"no room for {num_bytes} bytes in memory that ranks share")
            free.append(self._end)
            self._end += size
        return size, free.pop()

    def give_back(self, size: int, place: int) -> None:
        """Free a block that was lent."""
        self._free[size].append(place)


class Neighbour:
    """It is another rank, with its memory and a pipe each way. done_with: how many collectives it has finished reading.
    taken: numbers of what was written for it alone that it has read since they were last cleared.

    One that has ended or kept this rank waiting for too long is lost: nobody waits for it again.
    """

    def __init__(self, memory: Mapped, listening: int, speaking: int, timeout_s: float) -> None:
        self.memory, self._listening, self._speaking, self._timeout_s = memory, listening, speaking, timeout_s
        os.set_blocking(speaking, False)
        self._heard, self._room = select.poll(), select.poll()
        self._heard.register(listening, select.POLLIN)
        self._room.register(speaking, select.POLLOUT)
        self.done_with, self.taken = 0, list[int]()
        self._announced: dict[int, tuple[int, int]] = {}
        self._lost = ""

    def announce(self, message: bytes, *, listening: bool = False) -> None:
        """Send it a message. Raises RuntimeError if it has ended, or has not listened for too long.

        listening: take in what it says meanwhile, as both may wait for room; no other thread does then.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                os.write(self._speaking, message)
                return
            except BlockingIOError:
                if listening:
                    self.hear()
                self._await(self._room, deadline)
            except OSError as error:
                if listening:
                    self.hear()  # what it said before counts
                raise self._gone(CLOSED) from error

    def hear(self) -> None:
        """Take in what it has said so far."""
        while self._heard.poll(0) and self._read():
            pass

    def announced(self, key: int) -> bool:
        """Say whether it has said where it has written this, or never will."""
        if key not in self._announced:
            self.hear()
        return key in self._announced or bool(self._lost)

    def wait_for(self, key: int) -> tuple[int, int]:
        """Wait until it says where it has written this, and of which sort. Raises RuntimeError if it has ended, or
        takes too long.
        """
        deadline = time.monotonic() + self._timeout_s
        while key not in self._announced:
            self._await(self._heard, deadline)
            self._read()
        return self._announced.pop(key)

    def _await(self, something: select.poll, deadline: float) -> None:
        if self._lost or not something.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise self._gone(self._lost or f"no answer within {self._timeout_s:g} s")

    def _gone(self, why: str) -> RuntimeError:
        self._lost = why
        return RuntimeError(why)

    def _read(self) -> bool:
        """Read what has come; returns False at the end of the pipe. Messages are written, and so read, as a whole."""
        said = os.read(self._listening, 1024 * MESSAGE.size)
        for key, done_with, place, sort in MESSAGE.iter_unpack(said):
            if key & TAKEN:
                self.taken.append(key - TAKEN)
            else:
                self._announced[key] = place, sort
            self.done_with = max(self.done_with, done_with)
        if not said:
            self._lost = CLOSED
        return bool(said)

    def __del__(self) -> None:
        os.close(self._listening)
        os.close(self._speaking)


class Door:
    """The others of a host find a rank at its door while they meet: a socket that leaves nothing behind.

    One that can't be opened is found by nobody, so that the meeting fails for all.
    """

    def __init__(self) -> None:
        self.number = secrets.randbits(62)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            self._socket.bind(_address(self.number))
            self._socket.listen(MOST_RANKS)

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def meet(self, doors: Sequence[int], own: int, timeout_s: float) -> tuple[Own, list[Neighbour]]:
        """Give this rank's memory and the others, in order. Raises OSError if one isn't reached within MEETING_S.

        doors: of all ranks. timeout_s: for what is asked of them later.
        """
        deadline = time.monotonic() + MEETING_S
        with ExitStack() as stack:
            file = os.memfd_create("par4d")
            stack.callback(os.close, file)
            memory = Own(file)
            calls: dict[int, socket.socket] = {}
            for rank, door in enumerate(doors[:own]):
                calls[rank] = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                calls[rank].settimeout(MEETING_S)
                calls[rank].connect(_address(door))
                calls[rank].send(bytes([own]))
            while len(calls) < len(doors) - 1:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                call, _ = self._socket.accept()
                stack.enter_context(call).settimeout(MEETING_S)
                if struct.unpack("3i", call.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] == os.getuid():
                    calls.update((rank, call) for rank in call.recv(1))
            return memory, [_exchange(calls[rank], file, timeout_s) for rank in sorted(calls)]


def _exchange(call: socket.socket, memory: int, timeout_s: float) -> Neighbour:
    """Give the other rank our memory and the end of a pipe, and take its own."""
    theirs, speaking = os.pipe()
    try:
        socket.send_fds(call, [b"\0"], [memory, theirs])
    finally:
        os.close(theirs)
    _, (file, listening), *_ = socket.recv_fds(call, 1, 2)
    try:
        return Neighbour(Mapped(file), listening, speaking, timeout_s)
    finally:
        os.close(file)


def _address(number: int) -> str:
    """Name the socket in Linux's abstract namespace."""
    return f"\0par4d-memory-{number:x}"


def host() -> int:
    """Give the number of a rank's host and network: containers may share one and not the other."""
    return hashed(f"{own_row()[0]} {link('/proc/self/ns/net')}")
