"""What a rank of a peer is told first. No torch."""

from dataclasses import dataclass

from engine.comm.launch import Launch
from engine.peers.contest import Case, Contest


@dataclass(frozen=True, slots=True)
class Order:
    """launch: of the rank beside which it runs, and whose place it takes among as many of its own."""

    contest: Contest
    case: Case
    launch: Launch
