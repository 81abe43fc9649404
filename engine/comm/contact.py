"""Loss of contact: which ranks are out of reach, and which of this host's are lost, by Linux's /proc. No torch.

A rank that ends by itself announces it to the others of its host before; one that is gone unannounced was killed or
crashed.
"""

import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from engine.errors import ContactError, first_line, is_out_of_memory

NAMED = 8
"""Ranks that a message names."""


class LostContact(ContactError):
    """Collective that failed or timed out: other ranks of its group are gone, stand still or wait."""

    def __init__(self, route: "Route", error: Exception) -> None:
        self._route = route
        super().__init__(route.lost(), f"{route.backend}: {first_line(error)}")

    def story(self, lost: Collection[int] = ()) -> str:
        """Name with whom contact was lost: of several, those that are known to be lost (ContactError.story)."""
        return self._route.lost(lost)


@dataclass(frozen=True, slots=True)
class Route:
    rank: int
    where: str
    """axis, or activity that needs the others"""
    ranks: Sequence[int]
    """the others, perhaps with this one"""
    backend: str
    """back end whose own words follow"""

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn a back end's RuntimeError into LostContact, unless memory has run out."""
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise LostContact(self, error) from error

    def lost(self, lost: Collection[int] = ()) -> str:
        """Word the clause. lost: ranks that are known to be."""
        return f"rank {self.rank} lost contact with {self.whom(lost)} {self.where}"

    def whom(self, lost: Collection[int] = ()) -> str:
        """Name the other ranks, or those of them that are known to be lost."""
        others = [rank for rank in self.ranks if rank != self.rank]
        known = [rank for rank in others if rank in lost] or others
        if len(known) == 1:
            return f"rank {known[0]}"
        if len(known) <= NAMED:
            return f"one of ranks {', '.join(map(str, known))}"
        return f"one of {len(known)} ranks"


EXITING = 0x4
"""PF_EXITING of Linux's process flags, which is set before a dying process's connections are closed."""
WATCH_S = 2.0
PAUSE_S = 0.01

Row = tuple[int, int, int]
"""Host, process and its start, as 64-bit integers that ranks can exchange."""


class Loss(StrEnum):
    """How a rank is lost, as a sentence says it."""

    GONE = "is gone, killed or crashed"
    STOPPED = "is stopped, by SIGSTOP or a debugger"


@dataclass(frozen=True, slots=True)
class _Seen:
    state: str
    exiting: bool
    started: int
    """in clock ticks since boot, which tells it from a later process of the same number"""


def own_row() -> Row:
    """Return this process's row. Ranks are of one host if they see each other's processes."""
    host = "/".join([socket.gethostname(), _text("/proc/sys/kernel/random/boot_id"), link("/proc/self/ns/pid")])
    seen = _look(os.getpid())
    return hashed(host), os.getpid(), seen.started if seen and _own_proc() else 0


class Roster:
    """Ranks of this host. rows: of all ranks, in rank order."""

    def __init__(self, rank: int, rows: Sequence[Row]) -> None:
        host, process, started = rows[rank]
        self._others = {r: row[1:] for r, row in enumerate(rows) if row[0] == host and r != rank}
        self._visible = _own_proc() and _look(process) is not None
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.setblocking(False)
        with suppress(OSError):
            self._inbox.bind(_address(process, started))
        self.whole = self._visible and len(self._others) == len(rows) - 1
        """whether all ranks are here and visible"""

    def announce_exit(self) -> None:
        """Tell the others that this rank is about to end by itself."""
        for process, started in self._others.values():
            with suppress(OSError):  # it has ended, or has had so many that one more says nothing
                self._inbox.sendto(b"\0", _address(process, started))

    def close(self) -> None:
        """Close the inbox, so that the next roster of this process can open one."""
        self._inbox.close()

    def exit_announced(self) -> bool:
        try:
            return bool(self._inbox.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def lost(self) -> dict[int, Loss]:
        """Find the lost ranks. Once one has announced its exit, others that are gone may have followed it."""
        found = {rank: loss for rank, place in self._others.items() if (loss := self._loss(*place))}
        if self.exit_announced():
            return {rank: loss for rank, loss in found.items() if loss is Loss.STOPPED}
        return found

    def watch(self) -> dict[int, Loss]:
        """Find the lost ranks after a lost contact, with some patience until a dying one is seen to be dying."""
        ends = time.monotonic() + WATCH_S
        while not (found := self.lost()) and not self.exit_announced() and self._visible and time.monotonic() < ends:
            time.sleep(PAUSE_S)
        return found

    def describe(self, lost: dict[int, Loss]) -> str:
        host = socket.gethostname()
        clauses = [f"rank {rank} (process {self._others[rank][0]} on {host}) {loss}" for rank, loss in lost.items()]
        return " and ".join(clauses)

    def _loss(self, process: int, started: int) -> Loss | None:
        if not self._visible:
            return None
        seen = _look(process)
        if seen is None or seen.started != started or seen.exiting or seen.state in "ZX":
            return Loss.GONE
        return Loss.STOPPED if seen.state in "Tt" else None


def _address(process: int, started: int) -> str:
    """Name a socket in Linux's abstract namespace, where nothing is left behind."""
    return f"\0par4d-rank-{process}-{started}"


def _own_proc() -> bool:
    """Return whether /proc numbers processes as this one does, and not as another namespace."""
    return link("/proc/self") == str(os.getpid())


def _look(process: int) -> _Seen | None:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Seen(fields[0], bool(int(fields[6]) & EXITING), int(fields[19]))


def _text(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def hashed(words: str) -> int:
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "little", signed=True)


def link(path: str) -> str:
    """Read a link's target; nothing where that can't be read."""
    with suppress(OSError):
        return str(Path(path).readlink())
    return ""
