"""This process learns its rank from the environment of whichever launcher started it.

torchrun, flux, jsrun, Open MPI's mpirun, MPICH's and PALS's mpiexec, srun, or none of them (one rank). A
job's own shell under sbatch or salloc is no launcher, although Slurm sets a rank and a size there too.
MASTER_ADDR and MASTER_PORT win where they are set.
"""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import UsageError

if TYPE_CHECKING:
    import torch

FIRST_PORT, PORTS = 20000, 12000  # below 32768, where Linux begins to hand out ports by itself
SPECIAL_STEPS = 0xFFFFFFF0  # from here on Slurm numbers the steps of batch scripts and interactive shells
JOB_IDS = ("SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID", "PALS_APID", "PMIX_NAMESPACE")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch is this process's place among all. local_rank counts within the node; the master is where rank 0
    listens.
    """

    rank: int
    world_size: int
    local_rank: int
    launcher: str
    master_addr: str
    master_port: int
    parent: int = field(default=0, compare=False)
    """Process that started this one, where it has to outlive it: torchrun's, which holds the store; else 0."""


@dataclass(frozen=True, slots=True)
class _Variables:
    """A launcher uses these names; of several the first that is set counts."""

    launcher: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


# MPI launchers start their daemons by srun, so Slurm's own variables come last.
LAUNCHERS = (
    _Variables("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    _Variables("flux", ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",), nodes=("FLUX_JOB_NNODES",)),
    _Variables(
        "jsrun",
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    _Variables(
        "mpirun",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Variables(
        "mpiexec",
        ("PMI_RANK", "PALS_RANKID"),
        ("PMI_SIZE",),
        ("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
        ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    ),
    _Variables(
        "srun",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    ),
)


def from_environment(environ: Mapping[str, str]) -> Launch:
    """Read this process's place from the launcher's variables. Nothing is contacted.

    Raises UsageError if they contradict each other, or if the ranks span nodes and rank 0's address can't be
    known.
    """
    names = next((names for names in LAUNCHERS if _started_by(names, environ)), None)
    if names is None:
        return Launch(0, 1, 0, "none", "127.0.0.1", _port(environ, "none"))
    rank, size = _number(environ, names.rank), _number(environ, names.size)
    if rank is None or size is None:
        missing = " or ".join(names.rank if rank is None else names.size)
        raise UsageError(
            f"The launcher {names.launcher} left {missing} unset, so the number of ranks is unknown: set "
            "RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR for each process."
        )
    if not 0 <= rank < size:
        raise UsageError(
            f"The launcher {names.launcher} gave rank {rank} of {size}, but ranks go from 0 to {size - 1}: "
            f"check the variables {names.rank[0]} and {names.size[0]}."
        )
    one_node = size == 1 or _number(environ, names.local_size) == size or _number(environ, names.nodes) == 1
    host = environ.get("MASTER_ADDR") or ("127.0.0.1" if one_node else _first_host(environ, names.launcher))
    by_hand = names.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in environ
    launcher = "environment" if by_hand else names.launcher
    local_rank = _number(environ, names.local_rank)
    return Launch(
        rank, size, rank if local_rank is None else local_rank, launcher, host, _port(environ, names.launcher),
        parent=os.getppid() if launcher == "torchrun" else 0,
    )  # fmt: skip


def _started_by(names: _Variables, environ: Mapping[str, str]) -> bool:
    if names.launcher == "torchrun":
        return "RANK" in environ and "WORLD_SIZE" in environ
    if names.launcher == "srun":
        step = environ.get("SLURM_STEP_ID", "")
        return step.isdecimal() and int(step) < SPECIAL_STEPS and "SLURM_PROCID" in environ
    return any(name in environ for name in names.rank)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in environ:
            if not environ[name].isdecimal():
                raise UsageError(f"The variable {name} must be a whole number, but it is {environ[name]!r}: unset it.")
            return int(environ[name])
    return None


def _first_host(environ: Mapping[str, str], launcher: str) -> str:
    """Read the node of rank 0 from the scheduler's list of nodes. Raises UsageError if there is none."""
    if launcher == "srun" and "SLURM_STEP_NODELIST" in environ:
        return first_of_nodelist(environ["SLURM_STEP_NODELIST"])
    if "SLURM_JOB_NODELIST" in environ:
        return first_of_nodelist(environ["SLURM_JOB_NODELIST"])
    if hosts := environ.get("LSB_MCPU_HOSTS", "").split()[::2]:
        return hosts[1] if launcher == "jsrun" and len(hosts) > 1 else hosts[0]  # jsrun's first is the launch node
    hint = "$(flux hostlist --nth=0 local)" if launcher == "flux" else "the node of rank 0"
    raise UsageError(
        f"The ranks that {launcher} started span nodes and nothing says where rank 0 is: set "
        f"MASTER_ADDR={hint} for all of them."
    )


def first_of_nodelist(nodelist: str) -> str:
    """Read the first host of a Slurm list.

    >>> first_of_nodelist("nid[001-003,007],login1")
    'nid001'
    """
    first = re.match(r"(?:\[[^\]]*\]|[^,\[])+", nodelist)
    if not first:
        raise UsageError(f"The list of nodes {nodelist!r} names no node: set MASTER_ADDR to the node of rank 0.")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _port(environ: Mapping[str, str], launcher: str) -> int:
    """Give MASTER_PORT, or a port that every rank of this launch derives alike and another job hardly does."""
    given = _number(environ, ("MASTER_PORT",))
    if given is not None:
        return given
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID") if launcher == "srun" else JOB_IDS
    identity = "/".join(environ.get(name, "") for name in names)
    return FIRST_PORT + zlib.crc32(identity.encode()) % PORTS


def job_of(environ: Mapping[str, str]) -> str:
    """Return the scheduler's name of the job; nothing where there is none."""
    return next((environ[name] for name in JOB_IDS if environ.get(name)), "")


def choose_device(name: str, local_rank: int) -> "torch.device":
    """Choose the device for --device auto, cpu or cuda; one of several GPUs by local rank. Raises UsageError.

    A launcher that shows each rank its own GPU only leaves one visible: then that one is taken.
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
