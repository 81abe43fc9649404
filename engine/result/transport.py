"""This part of a result's file says what carried the collectives of a run between its ranks."""

from typing import Literal

from engine.schema import Record


class Network(Record):
    """So many ranks say this alike of the network between them; None is what they don't say.

    name: as the library's log calls it, such as Socket, IB or AWS Libfabric; of gloo tcp, shared memory where the ranks
    of a host exchange through theirs, or "tcp and shared memory"; unread says why there is none. interfaces: those of
    TCP. provider: libfabric's, such as cxi. gpu_direct_ranks: those that say that network devices access device memory
    themselves. host: of the first of these ranks.
    """

    name: str | None = None
    interfaces: str | None = None
    provider: str | None = None
    unread: str | None = None
    ranks: int
    gpu_direct_ranks: int | None = None
    host: str


class Transport(Record):
    """It carried collectives between ranks, as the back end itself said. library, plugin: with their versions."""

    backend: Literal["gloo", "nccl"]
    library: str | None = None
    plugin: str | None = None
    networks: tuple[Network, ...]
