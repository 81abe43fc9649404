"""Many ranks as threads of one process, with a Comm that is lazy on purpose.

A result is NaN until its handle is waited for, and an input that changes while in flight is an error: a forgotten wait
or a buffer reused too early can't pass. A mutation makes one collective wrong, to show that a test would notice. One
rank computes at a time, for threads that fight for the interpreter use up to four times the processor's time.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from waiting import LONG_S

from engine.comm.backend import PendingMessage
from engine.comm.collective import POINT_TO_POINT, Kind, Lane
from engine.comm.funnel import Comm
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder

T = TypeVar("T")


class _Slot:
    """Collective of one group: its inputs by rank, and its outcome once all have come."""

    def __init__(self) -> None:
        self.inputs: dict[int, Tensor] = {}
        self.kinds: set[tuple[Kind, int, int | None]] = set()
        self.done = threading.Event()
        self.outcome: Tensor | None = None


class Hub:
    """Meeting place of the threads. mutate(kind, axis, number of the call on that axis) -> "drop", "twice" or None.

    A rank whose gather is dropped takes its own part for every other's. add: of the ranks' inputs [ranks, n] their sum.
    """

    def __init__(
        self,
        mutate: Callable[[Kind, Axis, int], str | None] | None = None,
        add: Callable[[Tensor], Tensor] = lambda parts: parts.sum(0),
    ) -> None:
        self.mutate = mutate or (lambda kind, axis, number: None)
        self._add = add
        self.failed = threading.Event()
        self.turn = threading.Lock()
        self._lock = threading.Lock()
        self._slots: dict[tuple[tuple[int, ...], Lane, int], _Slot] = {}
        self._messages: dict[tuple[int, int, Lane], Queue[Tensor]] = defaultdict(Queue)

    def messages(self, sender: int, receiver: int, lane: Lane) -> Queue[Tensor]:
        with self._lock:
            return self._messages[sender, receiver, lane]

    def put(
        self, place: tuple[tuple[int, ...], Lane, int], rank: int, kind: Kind, value: Tensor, root: int | None = None
    ) -> _Slot:
        members = place[0]
        with self._lock:
            slot = self._slots.setdefault(place, _Slot())
            slot.inputs[rank] = value
            slot.kinds.add((kind, value.numel(), root))
            if len(slot.inputs) == len(members):
                if len(slot.kinds) > 1:
                    self.failed.set()
                    raise AssertionError(f"ranks {members} issued different collectives: {slot.kinds}")
                ordered = torch.stack([slot.inputs[m] for m in members])
                if kind is Kind.ALL_GATHER:
                    slot.outcome = ordered.flatten()
                elif kind is Kind.BROADCAST:
                    assert root is not None
                    slot.outcome = ordered[root]
                else:
                    slot.outcome = ordered.amax(0) if kind is Kind.MAX_REDUCE else self._add(ordered)
                del self._slots[place]
                slot.done.set()
        return slot

    def yielding(self, wait: Callable[[], T]) -> T:
        """Wait while another rank has its turn."""
        self.turn.release()
        try:
            return wait()
        finally:
            self.turn.acquire()

    def message(self, messages: Queue[Tensor]) -> Tensor:
        """Return the next of these, once it is there."""
        for _ in range(LONG_S * 10):
            with suppress(Empty):
                return self.yielding(lambda: messages.get(timeout=0.1))
            if self.failed.is_set():
                raise RuntimeError("another rank failed")
        raise TimeoutError("a rank never sent its message")

    def take(self, slot: _Slot) -> Tensor:
        for _ in range(LONG_S * 10):
            if slot.done.is_set() or self.yielding(lambda: slot.done.wait(0.1)):
                assert slot.outcome is not None
                return slot.outcome
            if self.failed.is_set():
                raise RuntimeError("another rank failed")
        raise TimeoutError("a rank never issued its part of a collective")


class LazyComm(Comm):
    """Comm over the Hub, which is its own source of channels."""

    def __init__(self, grid: Grid, hub: Hub, rank: int, recorder: Recorder | None = None) -> None:
        self.hub = hub
        self.numbers: Counter[Axis | tuple[Axis, Lane]] = Counter()
        self.members: dict[Axis, tuple[int, ...]] = {}
        self.in_flight = 0
        self.rank = rank
        super().__init__(grid, recorder=recorder, backend=self)

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Any:
        """Make a channel that hands everything to _start."""
        self.members[axis] = tuple(members)

        def start(kind: Kind, source: Tensor, target: Tensor, peer: int | None, _: object, *, blocking: bool) -> Any:
            return self._start(kind, axis, lane, source, target, peer)

        return SimpleNamespace(start=start)

    def _start(
        self, kind: Kind, axis: Axis, lane: Lane, source: Tensor, target: Tensor, peer: int | None
    ) -> Callable[[], None]:
        """Start any collective; for a subclass that wants to see all."""
        if kind in POINT_TO_POINT:
            return self._start_message(kind, axis, lane, target, peer)
        members = self.members[axis]
        self.numbers[axis] += 1
        self.numbers[axis, lane] += 1
        self.in_flight += 1
        mutation = self.hub.mutate(kind, axis, self.numbers[axis])
        sent = source.clone()
        slot = self.hub.put((members, lane, self.numbers[axis, lane]), self.rank, kind, sent, peer)
        in_place = source.data_ptr() == target.data_ptr()
        is_root = peer is not None and members[peer] == self.rank
        if kind is not Kind.BROADCAST or not is_root:
            _spoil(target)

        def finish() -> None:
            self.in_flight -= 1
            outcome = self.hub.take(slot)
            assert in_place or source.equal(sent) or source.isnan().any(), "an input changed while in flight"
            if kind is Kind.REDUCE_SCATTER:
                place = members.index(self.rank)
                outcome, own = outcome.chunk(len(members))[place], sent.chunk(len(members))[place]
            else:
                own = sent
            if mutation == "drop":
                outcome = own.repeat(len(members)) if kind is Kind.ALL_GATHER else own
            if mutation == "twice":
                outcome = outcome * 2
            if kind is Kind.BROADCAST and is_root:
                assert target.equal(sent) or target.isnan().any(), "a root's buffer changed while in flight"
            elif kind is Kind.REDUCE and not is_root:
                return  # stays spoiled: what is left here means nothing
            else:
                target.copy_(outcome)

        return finish

    def _start_message(
        self, kind: Kind, axis: Axis, lane: Lane, buffer: Tensor, peer: int | None
    ) -> Callable[[], None]:
        assert peer is not None
        other = self.members[axis][peer]
        self.in_flight += 1
        if kind is Kind.SEND:
            sent = buffer.clone()
            self.hub.messages(self.rank, other, lane).put(sent)
        else:
            _spoil(buffer)

        def finish() -> None:
            self.in_flight -= 1
            if kind is Kind.SEND:
                assert torch.equal(buffer, sent), "an input changed while in flight"
            else:
                buffer.copy_(self.hub.message(self.hub.messages(other, self.rank, lane)))

        return _Arriving(finish, self.hub.messages(other, self.rank, lane)) if kind is Kind.RECV else finish

    def _pause(self, came: threading.Event, seconds: float) -> None:
        if self.hub.failed.is_set():
            raise RuntimeError("another rank failed")
        self.hub.yielding(lambda: time.sleep(1e-4))


@dataclass
class _Arriving(PendingMessage):
    finish: Callable[[], None]
    messages: Queue[Tensor]

    def __call__(self) -> None:
        self.finish()

    def arrived(self) -> bool:
        return not self.messages.empty()


def _spoil(buffer: Tensor) -> None:
    buffer.fill_(torch.nan if buffer.is_floating_point() else 255 if buffer.dtype is torch.uint8 else -1)


def run_ranks(
    grid: Grid,
    work: Callable[[Comm], T],
    *,
    mutate: Callable[[Kind, Axis, int], str | None] | None = None,
    record: bool = False,
    of: type[LazyComm] = LazyComm,
    add: Callable[[Tensor], Tensor] = lambda parts: parts.sum(0),
) -> list[T]:
    """Run work(comm) on every rank of the grid at once; return the results in rank order."""
    hub = Hub(mutate, add)

    def one(rank: int) -> T:
        try:
            with hub.turn:
                return work(of(grid, hub, rank, Recorder() if record else None))
        except BaseException:
            hub.failed.set()
            raise

    with ThreadPoolExecutor(grid.size) as pool:
        futures = [pool.submit(one, rank) for rank in range(grid.size)]
        errors = [f.exception() for f in futures]
    first = [e for e in errors if e is not None and str(e) != "another rank failed"] or [e for e in errors if e]
    if first:
        raise first[0]
    return [f.result() for f in futures]


def factorisations(sizes: Sequence[int] = (1, 2, 4, 8)) -> list[Grid]:
    """List every ordered grid with that many ranks."""
    return [
        Grid(*shape) for size in sizes for shape in product(range(1, size + 1), repeat=4) if Grid(*shape).size == size
    ]
