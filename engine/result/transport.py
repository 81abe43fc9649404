"""What carried the collectives of a run between its ranks, as its result has it."""

from typing import Literal

from engine.schema import Record


class Network(Record):
    """Network between ranks that say the same of it; None is what they don't say."""

    name: str | None = None
    """As the library's log calls it, such as Socket, IB or AWS Libfabric; of gloo tcp. In files of before, "shared
    memory" and "tcp and shared memory", too.
    """
    interfaces: str | None = None
    """Those of TCP."""
    provider: str | None = None
    """Libfabric's, such as cxi."""
    unread: str | None = None
    """Why there is no name."""
    ranks: int
    gpu_direct_ranks: int | None = None
    """Ranks which say that network devices access device memory themselves."""
    host: str
    """That of the first of these ranks."""


class Transport(Record):
    """Library that carried collectives between ranks, as it said itself; library, plugin: with their versions."""

    backend: Literal["gloo", "nccl"]
    library: str | None = None
    plugin: str | None = None
    networks: tuple[Network, ...]
