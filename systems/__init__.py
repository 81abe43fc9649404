"""Machines: one YAML file each, with its hardware facts and how ReFrame runs jobs on it.

settings.py hands the partitions to ReFrame; suites and reports read the facts from here. Every fact names its source,
and what is not known is left out. Data sheets of GPUs are in devices/ (device.py), measurements in measured/
(store.py).
"""

import os
import re
import socket
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from engine.errors import UsageError, nearest
from engine.schema import Record
from systems.device import Count, Device, Dtype, Fact, completed, device_called
from systems.files import SystemFileError, as_record, read_data
from systems.partition import (
    NAME,
    RANKS_PER_NODE,
    Container,
    LongestJobs,
    Partition,
    TimeLimit,
    Transport,
    has_placeholder,
    seconds,
)
from systems.store import Between, Cores, Measured, OfProcessor, Performance, Source, measured

__all__ = [
    "Between", "Container", "Cores", "Device", "Dtype", "Fact", "LongestJobs", "Measured", "OfProcessor", "Partition",
    "Performance", "Source", "SystemFileError", "TimeLimit", "Transport", "device_called", "measured", "seconds",
]  # fmt: skip

FOLDER = Path(__file__).parent
ANY = ".*"
"""Pattern of a system that any machine is."""


class Neighbours(Record):
    """Devices, one after the other in the order of ranks, that faster links connect than all others: of a node, or of
    several that have one each.
    """

    devices: Count
    """Number of a group."""
    bytes_per_s: Fact
    """Rate between two of a group."""


class Node(Record):
    """Hardware of one node. Bandwidths are bytes/s in one direction."""

    devices: Count | None = None
    memory_bytes: Fact | None = None
    """Memory of its processors."""
    nics: Count | None = None
    nic_bytes_per_s: Fact | None = None
    intra_node_bytes_per_s: Fact | None = None
    """Rate between two devices of the node; where links differ, of the slowest of them."""
    neighbours: Neighbours | None = None
    """Groups within which links are faster."""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"should be a regular expression, but {error}") from None
    if text != ANY and re.search(text, ""):
        raise ValueError(f"matches every host: say {ANY!r} for that")
    return text


class Here(Record):
    """Host names and values of variables by which this machine is the system."""

    hostnames: tuple[Annotated[str, AfterValidator(_pattern)], ...] = ()
    environment: dict[str, str] = {}

    def matches(self) -> bool:
        hosts = {socket.gethostname(), socket.getfqdn()}
        return any(re.search(pattern, host) for pattern in self.hostnames for host in hosts) or any(
            os.environ.get(name) == value for name, value in self.environment.items()
        )


def _named_once(partitions: tuple[Partition, ...]) -> tuple[Partition, ...]:
    every = [partition.name for partition in partitions]
    if twice := next((name for name in every if every.count(name) > 1), None):
        raise ValueError(f"two partitions are called {twice!r}")
    return partitions


class System(Record):
    """Machine: how to know it, its hardware, and its partitions."""

    name: str = Field(pattern=NAME)
    """Name of its file."""
    title: str = Field(min_length=1)
    here: Here = Here()
    device: Annotated[Device, BeforeValidator(completed)]
    nodes: Count | None = None
    node: Node
    performance: Performance | None = None
    partitions: Annotated[tuple[Partition, ...], AfterValidator(_named_once)] = ()
    """No partitions where it is only planned with."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.partitions and "here" not in self.model_fields_set:
            raise ValueError("a machine with partitions says by `here` how it is known")
        for partition in self.partitions:
            if self.node.devices:
                continue
            if partition.full_node_options:
                raise ValueError(f"full_node_options of partition {partition.name} take node.devices")
            if any(has_placeholder(RANKS_PER_NODE, option) for option in partition.launcher_options):
                raise ValueError(f"{{{RANKS_PER_NODE}}} in partition {partition.name} takes node.devices")
        return self

    def no_jobs(self) -> str | None:
        """Return why no job of the system can be written, in a sentence; None if jobs can be."""
        file = FOLDER / f"{self.name}.yaml"
        if not self.partitions:
            return f"{file} has no partitions, so {self.name} can be planned with, but runs nothing: add partitions."
        if any(partition.scheduler == "flux" for partition in self.partitions):
            return (
                f"{file} has the scheduler flux, which ReFrame asks for one core of one node, whatever a test needs: "
                f"plan with {self.name}, or start ranks there by `flux run`."
            )
        return None

    def check_size(self, devices: int) -> None:
        """Raise UsageError if a job asks for more devices than there are, as far as the file says how many."""
        if self.nodes and self.node.devices and devices > (most := self.nodes.value * self.node.devices.value):
            raise UsageError(
                f"{self.name} has {most:,} devices, {self.nodes.value:,} nodes of {self.node.devices.value}, but "
                f"{devices:,} were asked for: give at most that many."
            )

    def adjacent(self, ranks: Sequence[int]) -> bool:
        """Return whether all of these are of one group that faster links connect."""
        groups = self.node.neighbours
        return groups is not None and len({rank // groups.devices.value for rank in ranks}) == 1

    def is_here(self) -> bool:
        """Return whether this process runs on a login or compute node of the system."""
        return self.here.matches()

    def may_be_here(self) -> bool:
        """Return whether this machine is the system, or can be made into it, as into one that no host is by itself."""
        return self.is_here() or self.here == Here()


def names() -> tuple[str, ...]:
    """Return the names of all systems in alphabetical order; each has a file."""
    return tuple(file.stem for file in files(FOLDER))


def files(folder: Path) -> list[Path]:
    """Return the systems' files of a folder in alphabetical order, without those that editors hide there."""
    return sorted(path for path in folder.glob("*.yaml") if not path.name.startswith("."))


@cache
def load(name: str) -> System:
    """Return the system of that name. Raises UsageError with the nearest names, SystemFileError for a bad file."""
    if name not in names():
        if (FOLDER / f"{name}.yml").exists():
            raise UsageError(f"{FOLDER / name}.yml is read by nobody: call it {name}.yaml.")
        raise UsageError(f"No system is called {name!r}: {nearest(name, names())}")
    return read(FOLDER / f"{name}.yaml")


def here() -> System:
    """Return the system that this machine is, or else the one that any machine is.

    Of a system that is like another and has the same signs the other is meant. Raises UsageError for none or several.
    """
    every = [system for system in map(load, names()) if system.is_here()]
    mine = [system for system in every if ANY not in system.here.hostnames] or every
    if len(mine) > 1:
        known = {system.name for system in mine}
        mine = [system for system in mine if _keys(FOLDER / f"{system.name}.yaml").get("like") not in known]
    if len(mine) == 1:
        return mine[0]
    which = f"none of {', '.join(names())}"
    if mine:
        which = f"{' and '.join(system.name for system in mine)} by `here` of their files in {FOLDER}"
    raise UsageError(f"This machine, {socket.gethostname()}, is {which}: name one by --system.")


def named(name: str | None) -> System:
    """Return the system of that name, or that of this machine where none is named. Raises as load() and here()."""
    return here() if name is None else load(name)


def read(path: Path) -> System:
    """Read and check one file; the system is named as the file. Raises SystemFileError.

    A file that says `like: OTHER` gives what differs from that system, in place of whole keys of it.
    """
    return as_record(System, _merged(path), path, what="a system")


def is_bad_here(path: Path) -> bool:
    """Return whether a file that can't be read as a system still tells by its `here` that it is this machine's."""
    try:
        here = Here.model_validate(_merged(path).get("here", {}))
    except (SystemFileError, ValidationError):
        return False
    return ANY not in here.hostnames and here.matches()


def _merged(path: Path) -> dict[str, Any]:
    """Return all keys of a file, with those of the system that it is like."""
    data = _keys(path)
    if data.setdefault("name", path.stem) != path.stem:
        raise SystemFileError(f"{path} should be called {data['name']}.yaml, as a system is named as its file.")
    if (like := data.pop("like", None)) is None:
        return data
    other = path.with_name(f"{like}.yaml") if re.fullmatch(NAME, str(like)) else path
    if not other.exists() or "like" in (base := _keys(other)):
        raise SystemFileError(f"{path} is like {like!r}, which should be a file there that is like no other.")
    read(other)
    return _over(base, data)


def _keys(path: Path) -> dict[str, Any]:
    return read_data(path, what="a system", holds="title, device and partitions")


def _over(other: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Put own keys in place of the other's; so it is with the keys of each partition, by name."""
    partitions = {one["name"]: one for one in other.get("partitions", ())}
    match own.get("partitions"):
        case [*given] if all(isinstance(one, dict) for one in given):
            own = own | {"partitions": [partitions.get(one.get("name"), {}) | one for one in given]}
    return other | own
