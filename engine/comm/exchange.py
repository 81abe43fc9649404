"""Ranks that share memory write their inputs there, and read each other's in one order.

Whoever waits for a collective carries it out, and all that were begun before it.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from engine.comm.contact import Line
from engine.comm.neighbours import MESSAGE, Neighbour, Own


class Exchange:
    """An exchange carries out what the ranks of a group write and read, in one order for all. Two threads may use it,
    one of them to wait.
    """

    def __init__(self, memory: Own, neighbours: Sequence[Neighbour], own: int, line: Line) -> None:
        self.own, self.ranks = own, len(neighbours) + 1
        self._memory, self._neighbours, self._line = memory, neighbours, line
        self._begun = self._done = 0
        self._beginning, self._reading = threading.Lock(), threading.Lock()
        self._waiting: deque[Exchanged] = deque()

    def begin(self, sort: int, pieces: Sequence[Tensor], read: "Callable[[Inputs], None]") -> "Exchanged":
        """Write the pieces, flat and dense, one after the other; read is called once all ranks have written theirs."""
        with self._beginning, self._line.held():
            if self._reading.acquire(blocking=False):  # else somebody who waits listens
                try:
                    for neighbour in self._neighbours:
                        neighbour.hear()
                finally:
                    self._reading.release()
            number, self._begun = self._begun, self._begun + 1
            self._memory.free(min(self._done, *(neighbour.done_with for neighbour in self._neighbours)))
            place = self._memory.take(number, max(1, sum(piece.nbytes for piece in pieces)))
            offset = place
            for piece in pieces:
                if piece.numel():
                    self._memory.view(offset, piece).copy_(piece.view(-1))
                offset += piece.nbytes
            message = MESSAGE.pack(number, self._done, place, sort)
            for neighbour in self._neighbours:
                neighbour.announce(message)
            begun = Exchanged(self, number, place, sort, read)
            self._waiting.append(begun)
        return begun

    def finish(self, last: "Exchanged") -> None:
        """Carry out those that were begun up to this one, in their order. Raises LostContact, ValueError."""
        with self._reading:
            while not last.over:
                one = self._waiting[0]
                try:
                    with self._line.held():
                        self._carry_out(one)
                except Exception as error:
                    one.error = error
                one.over = True
                self._waiting.popleft()
                self._done = one.number + 1
        if last.error is not None:
            raise last.error

    def _carry_out(self, one: "Exchanged") -> None:
        announced = [neighbour.wait_for(one.number) for neighbour in self._neighbours]
        if any(sort != one.sort for _, sort in announced):
            raise ValueError("A collective met another one of its group: all ranks call the same, with equal sizes.")
        places = [place for place, _ in announced]
        places.insert(self.own, one.place)
        memories: list[Any] = [neighbour.memory for neighbour in self._neighbours]
        memories.insert(self.own, self._memory)
        one.read(Inputs(memories, places))


class Inputs:
    """Inputs are what each rank has written."""

    def __init__(self, memories: Sequence[Any], places: Sequence[int]) -> None:
        self._memories, self._places = memories, places

    def of(self, rank: int, like: Tensor, offset: int = 0) -> Tensor:
        """View as many elements from that byte on."""
        if not like.numel():
            return like
        return self._memories[rank].view(self._places[rank] + offset, like).view(like.shape)

    def every(self, like: Tensor, offset: int = 0) -> list[Tensor]:
        """View them of all ranks."""
        return [self.of(rank, like, offset) for rank in range(len(self._places))]


class Exchanged:
    """This exchange has begun and is not over."""

    __slots__ = ("error", "exchange", "number", "over", "place", "read", "sort")

    def __init__(self, exchange: Exchange, number: int, place: int, sort: int, read: Callable[[Inputs], None]) -> None:
        self.exchange, self.number, self.place, self.sort, self.read = exchange, number, place, sort, read
        self.over, self.error = False, None  # type: bool, Exception | None
