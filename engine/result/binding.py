"""Part of the schema of result.json: where ranks were bound, and what is wrong with that."""

from typing import Literal

from engine.schema import Record

FaultKind = Literal["cores shared", "cores far from the GPU", "fewer cores than asked", "fewer cores than threads"]


class RankBinding(Record):
    """Binding of one rank. What the system didn't tell is absent."""

    cores: str
    """Numbers of the cores that it may use: 0-15,64-79."""
    numa_nodes: tuple[int, ...] = ()
    """NUMA nodes of these cores."""
    gpu: str | None = None
    """PCI address."""
    gpu_numa_node: int | None = None
    network_card: str | None = None
    """Nearest to the GPU, or to the cores."""
    omp_num_threads: str | None = None
    """OMP_NUM_THREADS, as the environment has it."""
    threads: int
    """Threads of torch on processors."""
    cores_asked: int | None = None
    """Cores that the job asked for, for a rank."""


class NodeBinding(Record):
    """Bindings of the ranks of one node, or of several whose ranks are bound alike."""

    host: str
    """First of the nodes."""
    nodes: int = 1
    first_rank: int
    """First rank of the first node."""
    gpus: tuple[str | None, ...] = ()
    """UUIDs of the first node's GPUs, by rank; none on processors."""
    ranks: tuple[RankBinding, ...]
    """In the order of ranks."""


class BindingFault(Record):
    """Something wrong with how ranks are bound, so that the figures are of something else than is thought."""

    kind: FaultKind
    first_rank: int
    host: str
    """Host of the first rank."""
    ranks: int
    """How many ranks it is true of."""
    said: str
    """The sentence that says so."""


class Bindings(Record):
    """Where all ranks of a job were bound."""

    nodes: tuple[NodeBinding, ...]
    nodes_left_out: int = 0
    """Nodes that are bound as none of these."""
    faults: tuple[BindingFault, ...] = ()
