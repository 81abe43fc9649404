"""NCCL carries the messages of one direction of a pipeline, each of which begins at once.

torch has a communicator and a stream for each pair of ranks of a group, and orders them as nccl.py says. Two things
would have stages wait for each other for ever:

    torch makes a pair's communicator at its first message, while the host of either waits for the other. Two stages
    that each post a receive of their own direction first would both wait. So all pairs are connected beforehand, in
    one order.

    A communicator carries its messages one after the other, whoever sends them. Between two stages with several chunks
    each, activations go both ways, and a receive that is posted ahead would keep back what the other waits for. So two
    ranks have a group for what either sends. Of more stages a pair has one way only.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import launch
from engine.comm.collective import Kind
from engine.comm.contact import Line
from engine.comm.handle import Arriving
from engine.measure.pending import Pending


def groups_of(ranks: int) -> int:
    """Say how many groups the messages of so many ranks take."""
    return 2 if ranks == 2 else 1


class NcclMessages:
    """They are a channel for sends and receives alone. All ranks of the groups make it at once, as that connects them.

    groups: groups_of() their ranks.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup], device: torch.device, line: Line) -> None:
        self._groups, self._line = groups, line
        self._own = groups[0].rank()
        token = torch.zeros(1, dtype=torch.uint8, device=device)
        for sender, receiver in _pairs(groups[0].size()):
            if sender == self._own:
                self._launch(Kind.SEND, token, receiver)()
            elif receiver == self._own:
                self._launch(Kind.RECV, token, sender)()

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> "Message":
        """See Channel. source and target are the same buffer."""
        assert peer is not None
        return self._launch(kind, target, peer)

    def _launch(self, kind: Kind, buffer: Tensor, peer: int) -> "Message":
        sender = self._own if kind is Kind.SEND else peer
        group = self._groups[sender % len(self._groups)]
        with self._line.held():
            return Message(launch(kind, group, buffer, buffer, peer, async_op=True), self._line)


class Message(Arriving):
    """It is on its way, on a stream of torch's."""

    def __init__(self, work: dist.Work | None, line: Line) -> None:
        assert work is not None
        self._work, self._line = work, line

    def __call__(self) -> None:
        """Have the computing stream wait for it."""
        with self._line.held():
            self._work.wait()

    def arrived(self) -> bool:
        """Say whether it is there."""
        return self._work.is_completed()


def _pairs(ranks: int) -> Iterator[tuple[int, int]]:
    """List neighbours on the ring in an order in which most of them connect at the same time.

    >>> list(_pairs(4))
    [(0, 1), (2, 3), (1, 2), (3, 0)]
    """
    for sender in sorted(range(ranks), key=lambda rank: rank % 2):
        yield sender, (sender + 1) % ranks
