"""One rank sends another of its host a message through the memory that they share, in the order of sending.

The sender writes it into its own memory and says so through the pipe; that block is its own again once the other says
that it has read it. Neither waits for the other to send, and the ways there and back don't wait for each other.
"""

from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from engine.comm.backend import nothing
from engine.comm.contact import Line
from engine.comm.handle import Arriving
from engine.comm.neighbours import MESSAGE, SENT, TAKEN, Neighbour, Own
from engine.measure.pending import Pending


class Mail:
    """It is what passes between this rank and one neighbour. memory: this rank's own."""

    def __init__(self, memory: Own, neighbour: Neighbour, line: Line) -> None:
        self.neighbour, self.line = neighbour, line
        self._memory = memory
        self._sent = self._expected = 0
        self._lent: dict[int, tuple[int, int]] = {}

    def send(self, tensor: Tensor, pending: Pending | None) -> Callable[[], None]:
        """Write it where the other can read it; there is nothing left to wait for."""
        neighbour = self.neighbour
        with self.line.held():
            neighbour.hear()
            for number in neighbour.taken:
                self._memory.give_back(*self._lent.pop(number))
            neighbour.taken.clear()
            block = self._lent[self._sent] = self._memory.lend(tensor.nbytes)
            self._memory.view(block[1], tensor).copy_(tensor)
            neighbour.announce(MESSAGE.pack(SENT + self._sent, 0, block[1], tensor.nbytes), listening=True)
        self._sent += 1
        if pending is not None:
            pending.end()
        return nothing

    def receive(self, tensor: Tensor, pending: Pending | None) -> "Letter":
        """Expect the next one."""
        self._expected += 1
        return Letter(self, self._expected - 1, tensor, pending)


class Letter(Arriving):
    """It is a message that is expected. Who waits for it reads it, so that nothing is on its way before."""

    def __init__(self, mail: Mail, number: int, target: Tensor, pending: Pending | None) -> None:
        self._mail, self._number, self._target, self._pending = mail, number, target, pending

    def __call__(self) -> None:
        """Wait for it and read it. Raises LostContact, and ValueError if it is of another size."""
        neighbour, target = self._mail.neighbour, self._target
        if self._pending is not None:
            self._pending.begin()
        with self._mail.line.held():
            place, num_bytes = neighbour.wait_for(SENT + self._number)
            if num_bytes != target.nbytes:
                raise ValueError(f"A message of {num_bytes} bytes came where {target.nbytes} were to be received.")
            target.copy_(neighbour.memory.view(place, target))
        with suppress(RuntimeError):  # one that has ended needs its memory no more
            neighbour.announce(MESSAGE.pack(TAKEN + self._number, 0, 0, 0), listening=True)
        if self._pending is not None:
            self._pending.end()

    def arrived(self) -> bool:
        """Say whether it is there, or will never be."""
        return self._mail.neighbour.announced(SENT + self._number)
