"""Group what the ranks say of the network between them, alike ones together."""

from collections.abc import Sequence

from engine.comm.transport import Backend, Heard
from engine.result.transport import Network, Transport


def grouped(backend: Backend, said: Sequence[Heard], hosts: Sequence[str]) -> Transport:
    """Group what every rank says, in rank order, with the host of each."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for rank, one in enumerate(said):
        groups.setdefault((one.network, one.interfaces, one.provider, one.unread), []).append(rank)
    return Transport(
        backend=backend,
        library=next((one.library for one in said if one.library), None),
        plugin=next((one.plugin for one in said if one.plugin), None),
        networks=tuple(
            Network(
                name=name,
                interfaces=interfaces,
                provider=provider,
                unread=unread,
                ranks=len(ranks),
                gpu_direct_ranks=_count([said[rank].gpu_direct for rank in ranks]),
                host=hosts[ranks[0]],
            )
            for (name, interfaces, provider, unread), ranks in groups.items()
        ),
    )


def _count(answers: Sequence[bool | None]) -> int | None:
    """Count how many say yes; None if nobody says anything."""
    known = [answer for answer in answers if answer is not None]
    return sum(known) if known else None
