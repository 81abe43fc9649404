"""The machines: one YAML file each, with its hardware facts and how ReFrame runs jobs on it.

Adding a machine is adding one file. settings.py hands the partitions to ReFrame; suites and reports read the facts
from here. Every fact names its source, and what is not known is left out. What a GPU can do is in devices/, by its name
(device.py); what was measured on a machine is in a file of its own (store.py).
"""

import os
import re
import socket
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from engine.errors import UsageError, nearest
from engine.schema import Record
from systems.device import Device, completed, device_called
from systems.files import SystemFileError, as_record, read_data
from systems.performance import Cores, Count, Dtype, Fact, Performance, Sourced
from systems.store import Between, Measured, OfProcessor, Source, measured

__all__ = [
    "Between", "Cores", "Device", "Dtype", "Fact", "Measured", "OfProcessor", "Performance", "Source",
    "SystemFileError", "device_called", "measured",
]  # fmt: skip

FOLDER = Path(__file__).parent


class Transport(Record):
    """The network that NCCL (or RCCL) has to take between nodes there.

    networks: its names, as NCCL's log prints them. provider: the provider of libfabric, where there are several.
    nccl_net: the value of NCCL_NET between nodes, so that NCCL takes no other one; a job of one node may have none at
    all. env_vars: tune it. remedy: says what to do where NCCL took another one, as the end of a sentence.
    """

    networks: Sourced[Annotated[tuple[str, ...], Field(min_length=1)]]
    provider: str | None = Field(default=None, min_length=1)
    nccl_net: str = Field(min_length=1)
    env_vars: Sourced[dict[str, str]]
    remedy: str = Field(min_length=1)


class Node(Record):
    """What one node has. Bandwidths are bytes/s in one direction.

    intra_node_bytes_per_s: what two devices of the node send each other; where the links differ, the slowest of them.
    memory_bytes: the memory of its processors.
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
    """This machine is the system if its host name matches one of these, or a variable has the value given here."""

    hostnames: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    environment: dict[str, str] = {}


TimeLimit = Annotated[str, Field(pattern=r"^(\d+h)?(\d+m)?$", min_length=2)]


def seconds(time_limit: str) -> int:
    hours, minutes = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", time_limit).groups(default="0")  # type: ignore[union-attr]
    return 3600 * int(hours) + 60 * int(minutes)


class LongestJobs(Sourced[Annotated[dict[Annotated[int, Field(gt=0)], TimeLimit], Field(min_length=1)]]):
    """A queue's time limits: nodes -> the longest job on so many nodes at most, in the order of the nodes."""

    def on(self, nodes: int) -> str | None:
        """Return the limit of a job on so many nodes; None for more than the queue takes."""
        return next((limit for most, limit in sorted(self.value.items()) if nodes <= most), None)


class Partition(Record):
    """A ReFrame partition, in ReFrame's words where it has them.

    access: an option that speaks of {account} is left out where the environment names no account.
    devices_option: how a job asks for {devices} GPUs of each node; on Slurm this has a default.
    launcher_options: stand in the launch line. full_node_options: are added for jobs whose ranks fill their nodes.
    cancel_reasons: reasons (up to a comma) for which Slurm lets a job wait, and which no waiting mends.
    transport: what NCCL has to take there, where the machine has a network that it doesn't take by itself.
    longest_jobs: what the queue allows, where that depends on a job's nodes.
    max_jobs: how many may run at once; two that measure disturb each other where they share a network.
    time_limit: how long one training run may take there; of a local one nights count it, and nothing ends it.
    """

    name: str = Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_-]*$")
    scheduler: str
    launcher: str
    access: tuple[str, ...] = ()
    devices_option: str | None = None
    launcher_options: tuple[str, ...] = ()
    full_node_options: tuple[str, ...] = ()
    cpus_per_task: int | None = Field(default=None, gt=0)
    features: tuple[str, ...] = ()
    env_vars: dict[str, str] = {}
    prepare_cmds: tuple[str, ...] = ()
    cancel_reasons: tuple[str, ...] = ()
    transport: Transport | None = None
    longest_jobs: LongestJobs | None = None
    max_jobs: int = Field(default=1, gt=0)
    time_limit: TimeLimit

    @property
    def is_local(self) -> bool:
        """Return whether jobs are processes of this machine, which no queue ends (systems/schedulers.py)."""
        return self.scheduler == "local"


class System(Record):
    """A machine: how to know it, its hardware, and its partitions. nodes: how many it has of these."""

    name: str
    title: str = Field(min_length=1)
    here: Here
    device: Annotated[Device, BeforeValidator(completed)]
    nodes: Count | None = None
    node: Node
    performance: Performance | None = None
    partitions: tuple[Partition, ...] = Field(min_length=1)

    def check_size(self, devices: int) -> None:
        """Raise UsageError if a job asks for more devices than there are, as far as the file says how many."""
        if self.nodes and self.node.devices and devices > (most := self.nodes.value * self.node.devices.value):
            raise UsageError(
                f"{self.name} has {most:,} devices, {self.nodes.value:,} nodes of {self.node.devices.value}, but "
                f"{devices:,} were asked for: give at most so many."
            )

    def is_here(self) -> bool:
        """Say whether this process runs on a login or compute node of the system."""
        hosts = {socket.gethostname(), socket.getfqdn()}
        return any(re.search(pattern, host) for pattern in self.here.hostnames for host in hosts) or any(
            os.environ.get(name) == value for name, value in self.here.environment.items()
        )

    def may_be_here(self) -> bool:
        """Say whether this machine is the system, or can be made into it, as into one that no host is by itself."""
        return self.is_here() or self.here == Here()


def names() -> tuple[str, ...]:
    """Return the names of all systems in alphabetical order; each has a file."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str) -> System:
    """Return the system of that name. Raises UsageError with the nearest names, SystemFileError for a bad file."""
    if name not in names():
        raise UsageError(f"No system is called {name!r}: {nearest(name, names())}")
    return _load(name)


def here() -> System:
    """This machine is that system. Of several it is the first by name, but one that any machine is comes last."""
    mine = [system for system in map(load, names()) if system.is_here()]
    if not mine:
        raise UsageError(
            f"This machine, {socket.gethostname()}, is none of {', '.join(names())}: name one by --system."
        )
    return min(mine, key=lambda system: ".*" in system.here.hostnames)


def named(name: str | None) -> System:
    """Return the system of that name, or that of this machine where none is named. Raises as load() and here()."""
    return here() if name is None else load(name)


@cache
def _load(name: str) -> System:
    return read(FOLDER / f"{name}.yaml")


def read(path: Path) -> System:
    """Read and check one file; the system is named as the file. Raises SystemFileError.

    A file that says `like: OTHER` gives what differs from that system, in place of whole keys of it.
    """
    data = _keys(path)
    if (like := data.pop("like", None)) is not None:
        other = path.with_name(f"{like}.yaml")
        if not other.exists() or "like" in (base := _keys(other)):
            raise SystemFileError(f"{path} is like {like!r}, which should be a file there that is like no other.")
        read(other)
        data = _over(base, data)
    return as_record(System, {"name": path.stem} | data, path, what="a system")


def _keys(path: Path) -> dict[str, Any]:
    return read_data(path, what="a system", holds="title, device and partitions")


def _over(other: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Put own keys in place of the other's; so it is with the keys of each partition, by name."""
    partitions = {one["name"]: one for one in other["partitions"]}
    match own.get("partitions"):
        case [*given] if all(isinstance(one, dict) for one in given):
            own = own | {"partitions": [partitions.get(one.get("name"), {}) | one for one in given]}
    return other | own
