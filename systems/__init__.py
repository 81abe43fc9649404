"""The machines: one YAML file each, with its hardware facts and how ReFrame runs jobs on it.

Adding a machine is adding one file. settings.py hands the partitions to ReFrame; suites and reports read the facts
from here. Every fact names its source, and what is not known is left out. What was measured on a machine is in a file
of its own (store.py).
"""

import os
import re
import socket
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from engine.errors import UsageError, nearest
from engine.schema import Record
from systems.files import SystemFileError, read_as
from systems.performance import Cores, Dtype, Fact, Performance
from systems.store import Between, Measured, OfProcessor, Source, measured

__all__ = [
    "Between", "Cores", "Dtype", "Fact", "Measured", "OfProcessor", "Performance", "Source", "SystemFileError",
    "measured",
]  # fmt: skip

FOLDER = Path(__file__).parent


class Count(Record):
    """A whole number and where it comes from."""

    value: int = Field(gt=0)
    source: str = Field(min_length=1)


class Names(Record):
    """What something is called, in all the ways that are known, and where that comes from."""

    value: tuple[str, ...] = Field(min_length=1)
    source: str = Field(min_length=1)


class Variables(Record):
    """Environment variables of a job, and the document that gives them."""

    value: dict[str, str]
    source: str = Field(min_length=1)


class Transport(Record):
    """The network that NCCL (or RCCL) has to take between nodes there.

    networks: its names, as NCCL's log prints them. provider: libfabric's, where it is one of several. nccl_net: what
    NCCL_NET is between nodes, so that NCCL takes no other one; a job of one node may have no network at all. env_vars:
    how it is tuned. remedy: what to do where NCCL took another one, the end of a sentence.
    """

    networks: Names
    provider: str | None = Field(default=None, min_length=1)
    nccl_net: str = Field(min_length=1)
    env_vars: Variables
    remedy: str = Field(min_length=1)


class Device(Record):
    """One device: what a rank computes on. Peaks are flop/s by dtype, those of matrix products.

    empirical_peak_flops: the best a GEMM benchmark has sustained, and at which size its source says.
    memory_bytes_per_s: of its own memory, as advertised.
    """

    name: str = Field(min_length=1)
    kind: Literal["cpu", "cuda"]
    memory_bytes: Fact | None = None
    memory_bytes_per_s: Fact | None = None
    peak_flops: dict[Dtype, Fact] = {}
    empirical_peak_flops: dict[Dtype, Fact] = {}


class Node(Record):
    """One node. Bandwidths are bytes/s in one direction.

    intra_node_bytes_per_s: between two devices of the node; where the links differ, the slowest of them. memory_bytes:
    of its processors.
    """

    devices: Count | None = None
    memory_bytes: Fact | None = None
    nics: Count | None = None
    nic_bytes_per_s: Fact | None = None
    intra_node_bytes_per_s: Fact | None = None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"should be a regular expression, but {error}") from None
    return text


class Here(Record):
    """How to tell that this machine is the system: a host name that matches, or a variable that has the value."""

    hostnames: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    environment: dict[str, str] = {}


TimeLimit = Annotated[str, Field(pattern=r"^(\d+h)?(\d+m)?$", min_length=2)]


def seconds(time_limit: str) -> int:
    """Of a time limit such as 1h30m."""
    hours, minutes = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", time_limit).groups(default="0")  # type: ignore[union-attr]
    return 3600 * int(hours) + 60 * int(minutes)


class LongestJobs(Record):
    """A queue's time limits: nodes -> the longest job on so many nodes at most, in the order of the nodes."""

    value: dict[Annotated[int, Field(gt=0)], TimeLimit] = Field(min_length=1)
    source: str = Field(min_length=1)

    def on(self, nodes: int) -> str | None:
        """The limit of a job on so many nodes; None for more than the queue takes."""
        return next((limit for most, limit in sorted(self.value.items()) if nodes <= most), None)


class Partition(Record):
    """A ReFrame partition, in ReFrame's words where it has them.

    access: an option that speaks of {account} is left out where the environment names no account.
    devices_option: how a job asks for {devices} GPUs of each node, which on Slurm goes without saying.
    launcher_options: for the launch line.
    cancel_reasons: of those that Slurm gives for a waiting job, up to a comma, the ones that no waiting mends.
    transport: what NCCL has to take there, where the machine has a network that it doesn't take by itself.
    longest_jobs: what the queue allows, where that depends on a job's nodes.
    max_jobs: at once; two jobs that measure would disturb each other where they share a network.
    time_limit: of one training run there.
    """

    name: str = Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]*$")
    scheduler: str
    launcher: str
    access: tuple[str, ...] = ()
    devices_option: str | None = None
    launcher_options: tuple[str, ...] = ()
    cpus_per_task: int | None = Field(default=None, gt=0)
    features: tuple[str, ...] = ()
    env_vars: dict[str, str] = {}
    prepare_cmds: tuple[str, ...] = ()
    cancel_reasons: tuple[str, ...] = ()
    transport: Transport | None = None
    longest_jobs: LongestJobs | None = None
    max_jobs: int = Field(default=1, gt=0)
    time_limit: TimeLimit


class System(Record):
    """A machine."""

    name: str
    title: str = Field(min_length=1)
    here: Here
    device: Device
    node: Node
    performance: Performance | None = None
    partitions: tuple[Partition, ...] = Field(min_length=1)

    def is_here(self) -> bool:
        """Whether this process runs on a login or compute node of the system."""
        hosts = {socket.gethostname(), socket.getfqdn()}
        return any(re.search(pattern, host) for pattern in self.here.hostnames for host in hosts) or any(
            os.environ.get(name) == value for name, value in self.here.environment.items()
        )

    def may_be_here(self) -> bool:
        """Whether this machine is the system, or can be made into it, as into one that no host is by itself."""
        return self.is_here() or self.here == Here()


def names() -> tuple[str, ...]:
    """The name of every system, those of one file each, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str) -> System:
    """The system of that name. Raises UsageError with the nearest names, SystemFileError for a bad file."""
    if name not in names():
        raise UsageError(f"No system is called {name!r}: {nearest(name, names())}")
    return _load(name)


def device_called(name: str) -> Device | None:
    """The GPU of a system, by what PyTorch calls it; None for one that is in no system's file.

    It is the one whose model, the first word such as A100 or MI250X of its own name, is a word of the name.
    """
    words = set(re.findall(r"\w+", name))
    for device in (load(system).device for system in names()):
        model = re.search(r"\b[A-Z]+\d{2,}\w*", device.name)
        if device.kind == "cuda" and model is not None and model[0] in words:
            return device
    return None


def here() -> System:
    """The system this machine is; one that any machine is (its hosts match everything) comes last."""
    mine = [system for system in map(load, names()) if system.is_here()]
    if not mine:
        raise UsageError(
            f"This machine, {socket.gethostname()}, is none of {', '.join(names())}: name one by --system."
        )
    return min(mine, key=lambda system: ".*" in system.here.hostnames)


@cache
def _load(name: str) -> System:
    return read(FOLDER / f"{name}.yaml")


def read(path: Path) -> System:
    """Read and check one file; the system is named as the file. Raises SystemFileError."""
    return read_as(System, path, what="a system", holds="title, device and partitions", name=path.stem)
