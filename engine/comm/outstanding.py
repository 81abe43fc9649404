"""A thread that observes a rank sees here what its collectives are at, also while the main one stands still. No
torch.
"""

from typing import TYPE_CHECKING

from engine.comm.collective import Kind, Lane
from engine.grid import Axis

if TYPE_CHECKING:
    from engine.comm.handle import Handle

Call = tuple[Kind, Axis, Lane]
"""A call is what is reported of one collective."""


class Outstanding:
    """The main thread writes these plain attributes at every collective, without a lock.

    in_flight: handles that are still to be waited for. moves: rises with each that is issued, and each whose wait has
    ended. awaited: the one in whose wait the host stands now. unconfirmed: the last that was issued since the host last
    knew all to be over; on CUDA, where a wait is the device's, that is all that the host knows. ranks: who takes part,
    where it isn't who does in the Comm that is looked on at.
    """

    __slots__ = ("awaited", "in_flight", "moves", "ranks", "unconfirmed")

    def __init__(self) -> None:
        self.in_flight: dict[Handle, Call] = {}
        self.moves = 0
        self.awaited: Call | None = None
        self.unconfirmed: Call | None = None
        self.ranks: tuple[int, ...] | None = None

    def settle(self) -> None:
        """Note that the host has waited for its device, so that all is over that was waited for there."""
        self.unconfirmed = None
        self.moves += 1
