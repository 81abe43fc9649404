"""Place of this process among all, by the environment of its launcher (launchers.py), or alone.

MASTER_ADDR and MASTER_PORT win where they are set.
"""

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.comm.launchers import AGENTS, ELASTIC, HAND, LAUNCHERS, SRUN, STRANGERS, Place, number
from engine.errors import UsageError

if TYPE_CHECKING:
    import torch

FIRST_PORT, PORTS = 20000, 12000  # below 32768, where Linux begins to hand out ports by itself
MOST_PORT = 65535
JOB_IDS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID", "PALS_APID", "PMIX_NAMESPACE")
HOST_FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE", "COBALT_NODEFILE", "OAR_NODEFILE", "LOADL_HOSTFILE")
"""Schedulers' variables that name a file with a line for each node, or for each of its processors."""


@dataclass(frozen=True, slots=True)
class Launch:
    rank: int
    world_size: int
    local_rank: int
    launcher: str
    master_addr: str
    """node where rank 0 listens"""
    master_port: int
    parent: int = field(default=0, compare=False)
    """torchrun's process, which holds the store and has to outlive this one; else 0"""
    master_by_list: bool = field(default=False, compare=False)
    """whether master_addr is the first node of the scheduler's list, and not MASTER_ADDR"""


def from_environment(environ: Mapping[str, str]) -> Launch:
    """Read this process's place from the launcher's variables. Nothing is contacted.

    Raises UsageError if they contradict each other or leave something out, and if the ranks span nodes and rank 0's
    address can't be known.
    """
    given = {name: value for name, value in environ.items() if value}  # an empty one says as much as none
    places = [Place.read(launcher, given) for launcher in LAUNCHERS if launcher.has_started(given)]
    own = next((place for place in places if place.is_whole), None)
    if own is None:
        _refuse_what_is_not_whole(places, given)
        return Launch(0, 1, 0, "none", "127.0.0.1", _port(given, "none"))
    for other in places:
        _refuse_contradiction(own, other, given)
    alike = [place for place in places if place.agrees_with(own)]
    starter = [place for place in alike if place.is_whole][-1]
    launcher = "torchrun" if own.launcher is HAND and ELASTIC in given else starter.launcher.name
    rank, size = own.rank or 0, own.size or 0
    if rank >= size:
        raise UsageError(f"{own.text(given)} can't be, as ranks go from 0 to {size - 1}: check what {launcher} sets.")
    local_size = next((place.local_size for place in alike if place.local_size is not None), None)
    one_node = size in (1, local_size) or any(place.nodes == 1 for place in alike)
    if (local_rank := next((place.local_rank for place in alike if place.local_rank is not None), None)) is None:
        if not one_node and own.launcher is not HAND:
            raise UsageError(f"{own.text(given)} don't say which rank of its node this is: set LOCAL_RANK for each.")
        local_rank = rank
    elif local_rank >= (most := size if local_size is None else local_size):
        raise UsageError(
            f"Local rank {local_rank} can't be one of {most} of a node ({own.text(given)}): check what {launcher} sets."
        )
    by_list = not given.get("MASTER_ADDR") and not one_node
    host = given.get("MASTER_ADDR", "").strip("[]") or (_first_host(environ, launcher) if by_list else "127.0.0.1")
    parent = os.getppid() if launcher == "torchrun" else 0
    return Launch(rank, size, local_rank, launcher, host, _port(given, launcher), parent, by_list)


def _refuse_what_is_not_whole(places: Sequence[Place], environ: Mapping[str, str]) -> None:
    """Raise UsageError if a launcher has started this process that doesn't give its rank and the number of ranks."""
    for place in places:
        names = (place.launcher.rank if place.rank is None else (), place.launcher.size if place.size is None else ())
        missing = " and ".join(several[0] for several in names if several)
        raise UsageError(
            f"{place.text(environ)} is set and {missing} is not, so the place of this process is unknown: set RANK, "
            "WORLD_SIZE, LOCAL_RANK and MASTER_ADDR for each process, or unset what is left from something else."
        )
    for name, launcher in STRANGERS.items():
        if name in environ:
            raise UsageError(
                f"{name}={environ[name]} is of {launcher}, which doesn't say how many ranks there are: set RANK, "
                "WORLD_SIZE, LOCAL_RANK and MASTER_ADDR for each process."
            )


def _refuse_contradiction(own: Place, other: Place, environ: Mapping[str, str]) -> None:
    """Raise UsageError unless both agree, or the other one started this one's launcher."""
    if own.agrees_with(other):
        return
    if own.launcher is HAND and ELASTIC in environ:
        if environ.get(AGENTS) == "1" and (other.size or 1) > 1:
            raise UsageError(
                f"{other.text(environ)}: each of these tasks has started a torchrun of its own, so that as many runs "
                "would write one result: start one task a node with torchrun --nnodes, or leave torchrun out."
            )
        return
    if other.launcher is not HAND:
        step_is_known = other.launcher is not SRUN or own.launcher is HAND or SRUN.size[0] in environ
        nested = not step_is_known or other.size is None or (own.size or 0) > other.size
        if nested:
            return
    raise UsageError(
        f"{own.text(environ)} and {other.text(environ)} contradict each other: unset those that are left from "
        "something else."
    )


def _first_host(environ: Mapping[str, str], launcher: str) -> str:
    """Read the node of rank 0 from the scheduler's list of nodes. Raises UsageError if there is none."""
    if launcher == "srun" and "SLURM_STEP_NODELIST" in environ:
        return first_of_nodelist(environ["SLURM_STEP_NODELIST"])
    if "SLURM_JOB_NODELIST" in environ:
        return first_of_nodelist(environ["SLURM_JOB_NODELIST"])
    hosts = environ.get("LSB_MCPU_HOSTS", "").split()[::2] or environ.get("LSB_HOSTS", "").split()
    if not hosts and (name := next((name for name in HOST_FILES if environ.get(name)), None)):
        hosts = _hosts_in(name, Path(environ[name]))
    if hosts:
        return hosts[1] if launcher == "jsrun" and len(hosts) > 1 else hosts[0]  # jsrun's first is the launch node
    hint = "$(flux hostlist --nth=0 local)" if launcher == "flux" else "the node of rank 0"
    raise UsageError(
        f"The ranks that {launcher} started span nodes and nothing says where rank 0 is: set "
        f"MASTER_ADDR={hint} for all of them."
    )


def _hosts_in(name: str, path: Path) -> list[str]:
    """Read a scheduler's list of nodes, each once. name: of the variable. Raises UsageError."""
    remedy = f'write export MASTER_ADDR=$(head -n 1 "${name}") into the job script, or set it to the node of rank 0'
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"{name}={path} can't be read on this node ({error.strerror}): {remedy}.") from None
    hosts = list(dict.fromkeys(words[0] for line in lines if (words := line.split()) and not words[0].startswith("#")))
    if not hosts:
        raise UsageError(f"{name}={path} names no node: {remedy}.")
    return hosts


def first_of_nodelist(nodelist: str) -> str:
    """Read the first host of a Slurm list.

    >>> first_of_nodelist("nid[001-003,007],login1")
    'nid001'
    """
    first = re.match(r"(?:\[[^\]]*\]|[^,\[\s])+", nodelist.lstrip(", "))
    if not first:
        raise UsageError(f"The list of nodes {nodelist!r} names no node: set MASTER_ADDR to the node of rank 0.")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _port(environ: Mapping[str, str], launcher: str) -> int:
    """Return MASTER_PORT, or a port that every rank of this launch derives alike and another job hardly does."""
    given = number(environ, "MASTER_PORT")
    if given is not None:
        if not 1 <= given <= MOST_PORT:
            raise UsageError(f"MASTER_PORT={given} is no port: set it to a free one, from 1024 to {MOST_PORT}.")
        return given
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID") if launcher == "srun" else JOB_IDS
    identity = "/".join(environ.get(name, "") for name in names)
    return FIRST_PORT + zlib.crc32(identity.encode()) % PORTS


def job_name(environ: Mapping[str, str]) -> str:
    """Return the scheduler's name of the job; nothing where there is none."""
    return next((environ[name] for name in JOB_IDS if environ.get(name)), "")


def take_device(name: str, launch: Launch, threads: int | None = None) -> "torch.device":
    """Choose this rank's device and prepare its process: threads, and on processors memory and prompt stamps."""
    import torch

    from engine.measure.clock import stamp_promptly
    from engine.measure.memory import keep_freed_memory

    device = choose_device(name, launch.local_rank)
    if threads is not None:
        torch.set_num_threads(threads)
    if device.type == "cpu":
        keep_freed_memory()
        stamp_promptly()
    return device


def choose_device(name: str, local_rank: int) -> "torch.device":
    """Choose the device for --device auto, cpu or cuda; one of several GPUs by local rank. Raises UsageError.

    Where the launcher shows each rank its own GPU alone, that one is taken.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"A device is auto, cpu or cuda, but {name!r} was given.")
    count = torch.cuda.device_count() if name != "cpu" else 0
    if name == "cuda" and not count:
        raise UsageError(
            "--device cuda was given, but no GPU is visible to torch: take --device cpu or a node with GPUs."
        )
    if not count:
        return torch.device("cpu")
    if count > 1 and local_rank >= count:
        raise UsageError(
            f"Local rank {local_rank} has no GPU of its own, as {count} are visible: start at most {count} "
            "ranks a node, or set LOCAL_RANK."
        )
    return torch.device("cuda", local_rank if count > 1 else 0)
