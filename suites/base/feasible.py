"""Obstacles to a job on a partition of a system: a test that has one is skipped before its setup, with the reason.

What the system's file says is believed: nodes, devices of a node, longest jobs, features, and peaks by number format.
"""

import math
import os
import shutil
import socket
from dataclasses import dataclass
from functools import cache
from typing import Literal

from engine.errors import UsageError
from systems import Partition, System, seconds

DeviceKind = Literal["cpu", "cuda"]
GPU_FEATURES = frozenset({"gpu", "cuda", "rocm", "nccl"})
VENDORS = {"AMD": "rocm", "NVIDIA": "cuda", "Tesla": "cuda"}
"""The first word of a device's name, and the feature of partitions that have it."""
ONE_NODE_LAUNCHER = "torchrun-one-node"
"""It starts processes on the node where the job's script runs alone."""
FEWEST_CORES = 2
NOT_EVERYWHERE = frozenset({"bf16", "fp16", "tf32"})
"""Number formats that some devices lack; every device computes in the others, whether its peak is known or not."""


@dataclass(frozen=True, slots=True)
class Job:
    """Needs of a job."""

    ranks: int
    ranks_of_a_node: int | None = None
    """None where the system's file has no number of devices"""
    device: str = "cuda"
    number_format: str | None = None
    time_limit_s: float | None = None
    """None for a limit that the user gave by hand, which no queue's rule overrides"""
    oversubscribe: bool = False
    """whether ranks may share a processor core"""


def obstacle(system: System, partition: Partition, job: Job) -> str | None:
    """Say in one sentence why a partition can't run a job; None if it can, as far as the system's file tells."""
    return (
        other_kind(system, partition, job.device)
        or _lacks_devices(system, partition, job)
        or _lacks_nodes(system, partition, job)
        or _too_long(system, partition, job)
        or _lacks_format(system, job)
    )


def other_kind(system: System, partition: Partition, device: str) -> str | None:
    """Say why a partition has no devices such as the system's; None if it has, or if its features don't tell.

    device: of the job; one that isn't the system's was asked for by hand, and any partition takes it.
    """
    features, kinds = {*partition.features}, _kinds(partition)
    if device != system.device.kind or not kinds:
        return None
    here, name = f"{place_of(system, partition)} has the features {', '.join(partition.features)}", system.device.name
    vendor = VENDORS.get(name.split()[0])
    other_vendor = vendor is not None and vendor not in features and features & {*VENDORS.values()}
    if device not in kinds or (device == "cuda" and other_vendor):
        return f"{here}, but jobs of {system.name} are for devices of the kind {name}"
    return None


def is_one_node(partition: Partition) -> bool:
    """Say whether no job has ranks on several nodes."""
    return partition.is_local or partition.launcher == ONE_NODE_LAUNCHER


def most_nodes(system: System, partition: Partition) -> int | None:
    """Return how many nodes a job can have; None where nothing says."""
    known = [1] if is_one_node(partition) else []
    known += [system.nodes.value] if system.nodes else []
    known += [max(partition.longest_jobs.value)] if partition.longest_jobs else []
    return min(known, default=None)


def devices_of_a_node(system: System, partition: Partition, device: str) -> int | None:
    """Return how many ranks a node has devices for; None where neither the system's file nor this machine tells.

    A rank takes a core of a machine that isn't a cluster. The GPUs of such a machine are those that PyTorch sees.
    """
    if system.node.devices and (device == system.device.kind or not partition.is_local):
        return system.node.devices.value
    if not partition.is_local:
        return None
    return max(os.cpu_count() or 1, FEWEST_CORES) if device == "cpu" else _gpus_here() or None


@cache
def _gpus_here() -> int:
    import torch  # seconds, which only a file without a number of devices takes

    return torch.cuda.device_count()


def per_node(system: System, ranks: int, most: int | None = None) -> int | None:
    """Say how many of a job's ranks a node gets: all that it has devices for, or fewer that divide the ranks.

    most: a smaller number that is asked for. None where the system's file has no number of devices.
    """
    if system.node.devices is None:
        return None
    devices = system.node.devices.value
    return max(number for number in range(1, min(devices, most or devices) + 1) if ranks % number == 0)


def _kinds(partition: Partition) -> set[DeviceKind]:
    """Return the kinds of devices that the features of a partition tell of."""
    kinds: set[DeviceKind] = {"cuda"} if GPU_FEATURES & {*partition.features} else set()
    return kinds | {"cpu"} if "cpu" in partition.features else kinds


def _lacks_devices(system: System, partition: Partition, job: Job) -> str | None:
    if job.ranks <= 1 or not is_one_node(partition):
        return None
    place, starts = place_of(system, partition), f"{job.ranks} ranks"
    devices = devices_of_a_node(system, partition, job.device)
    if job.device == "cpu":
        if devices is None or job.oversubscribe or job.ranks <= devices:
            return None
        return f"{starts} on {devices} cores measure little: -S oversubscribe=yes runs them all the same"
    if devices is None:
        return f"{place} is one node, and nothing says of how many GPUs (node: devices), but the job has {starts}"
    return f"{place} is one node of {devices} GPUs, but the job has {starts}" if job.ranks > devices else None


def _lacks_nodes(system: System, partition: Partition, job: Job) -> str | None:
    nodes = _nodes(partition, job)
    if nodes is None or system.nodes is None or nodes <= system.nodes.value:
        return None
    return f"{job.ranks} ranks take {_plural(nodes)}, but {system.name} has {_plural(system.nodes.value)}"


def _too_long(system: System, partition: Partition, job: Job) -> str | None:
    nodes, queue = _nodes(partition, job), partition.longest_jobs
    if nodes is None or queue is None:
        return None
    place, longest = place_of(system, partition), queue.on(nodes)
    if longest is None:
        return f"{job.ranks} ranks take {_plural(nodes)}, but {place} runs jobs on {max(queue.value)} at most"
    if job.time_limit_s is None or job.time_limit_s <= seconds(longest):
        return None
    return (
        f"the job asks for {_duration(job.time_limit_s)}, but {system.name} ends jobs on {_plural(nodes)} after "
        f"{longest} in its partition {partition.name}: -S time_limit=... sets another limit"
    )


def _lacks_format(system: System, job: Job) -> str | None:
    wanted, known = job.number_format, {*system.device.peak_flops, *system.device.empirical_peak_flops}
    if job.device != system.device.kind or not known or wanted not in NOT_EVERYWHERE - known:
        return None
    return f"{system.device.name} has no {wanted}, by its known peaks: {', '.join(sorted(known))}"


def _nodes(partition: Partition, job: Job) -> int | None:
    if is_one_node(partition):
        return 1
    return None if job.ranks_of_a_node is None else -(-job.ranks // job.ranks_of_a_node)


def place_of(system: System, partition: Partition) -> str:
    """Return what --system calls the partition."""
    return f"{system.name}:{partition.name}"


def _duration(seconds: float) -> str:
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours}h" * (hours > 0) + f"{minutes}m" * (minutes > 0)


def _plural(nodes: int) -> str:
    return f"{nodes} node{'s' * (nodes != 1)}"


SUBMITS = {"slurm": "sbatch", "squeue": "sbatch", "lsf": "bsub", "pbs": "qsub", "pbspro": "qsub", "torque": "qsub"}


def check_here(system: System, done: str) -> None:
    """Raise UsageError if no job of the system can be submitted. done: what a job does to it: "calibrated"."""
    if not system.may_be_here():
        raise UsageError(f"{system.name} is {done} on {system.name}, and this machine, {socket.gethostname()}, isn't.")
    if why := system.no_jobs():
        raise UsageError(why)
    taken = [one for one in system.partitions if not other_kind(system, one, system.device.kind)]
    for partition in taken:
        program = SUBMITS.get(partition.scheduler)
        if program and shutil.which(program) is None:
            raise UsageError(f"{system.name} takes jobs by {program}, which this machine doesn't have: is it up?")
