"""Parts of a result: where ranks were bound, and the network between them."""

from typing import Literal

from engine.schema import Record

FaultKind = Literal["cores shared", "cores far from the GPU", "fewer cores than asked", "fewer cores than threads"]


class RankBinding(Record):
    """Binding of one rank, as far as the system tells it."""

    cores: str
    """Numbers of the cores that it may use: 0-15,64-79."""
    numa_nodes: tuple[int, ...] = ()
    gpu: str | None = None
    """PCI address."""
    gpu_numa_node: int | None = None
    network_card: str | None = None
    """Nearest to the GPU, or to the cores."""
    omp_num_threads: str | None = None
    threads: int
    """Threads of torch on processors."""
    cores_asked: int | None = None


class NodeBinding(Record):
    """Bindings of the ranks of one node, or of several with the same bindings."""

    host: str
    """First of the nodes."""
    nodes: int = 1
    first_rank: int
    """First rank of the first node."""
    gpus: tuple[str | None, ...] = ()
    """UUIDs of the first node's GPUs, by rank; none on processors."""
    ranks: tuple[RankBinding, ...]


class BindingFault(Record):
    """Fault of the binding of ranks, so that figures are of something else than is thought."""

    kind: FaultKind
    first_rank: int
    host: str
    """Host of the first rank."""
    ranks: int
    said: str


class Bindings(Record):
    """Bindings of all ranks of a job."""

    nodes: tuple[NodeBinding, ...]
    nodes_left_out: int = 0
    """Nodes that are bound otherwise."""
    faults: tuple[BindingFault, ...] = ()


class Interconnect(Record):
    """Network between ranks that say the same of it."""

    name: str | None = None
    """Name in the library's log, such as Socket, IB or AWS Libfabric; of gloo tcp, in older files also "shared memory"
    and "tcp and shared memory".
    """
    interfaces: str | None = None
    """Interfaces of TCP."""
    provider: str | None = None
    """Provider of libfabric, such as cxi."""
    unread: str | None = None
    """Why there is no name."""
    ranks: int
    gpu_direct_ranks: int | None = None
    """Number of ranks which say that network devices access device memory themselves."""
    host: str
    """Host of the first of these ranks."""


class Transport(Record):
    """Library that carried collectives between ranks, and its plugin, with their versions."""

    backend: Literal["gloo", "nccl"]
    library: str | None = None
    plugin: str | None = None
    networks: tuple[Interconnect, ...]
