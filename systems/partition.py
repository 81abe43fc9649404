"""Partitions: how ReFrame runs jobs on a part of a machine."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from engine.errors import nearest
from engine.schema import Record
from systems.container import Container, Line, one_line
from systems.performance import Sourced
from systems.placeholders import ACCOUNT, DEVICES, RANKS_PER_NODE, check
from systems.placement import places_ranks

SCHEDULERS = ("local", "slurm", "squeue", "pbs", "pbspro", "torque", "lsf", "flux")
"""Of ReFrame's others, SGE asks for neither tasks nor what `access` says, OAR for no processors, ssh for nothing."""
LAUNCHERS = (
    *("srun", "ibrun", "alps", "mpiexec", "mpirun", "mpirun-openmpi", "mpirun-intelmpi"),
    *("lrun", "lrun-gpu", "jsrun", "torchrun-one-node"),
)
"""Launchers of a job's ranks: ReFrame's, and launchers.py's own. srunalloc asks for neither GPUs nor `access`."""
SLURM = ("slurm", "squeue")
"""squeue is Slurm without its accounting."""

NAME = r"^[a-zA-Z_][a-zA-Z0-9_-]*$"
"""Form of a name of a system, a partition or a feature in ReFrame."""


def _one_of(known: tuple[str, ...], what: str) -> AfterValidator:
    def check_name(name: str) -> str:
        if name not in known:
            raise ValueError(f"Par4D runs no jobs by the {what} {name!r}: {nearest(name, known)}")
        return name

    return AfterValidator(check_name)


def seconds(time_limit: str) -> int:
    hours, minutes = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", time_limit).groups(default="0")  # type: ignore[union-attr]
    return 3600 * int(hours) + 60 * int(minutes)


def _some_time(time_limit: str) -> str:
    if not seconds(time_limit):
        raise ValueError("should be longer than nothing")
    return time_limit


TimeLimit = Annotated[str, Field(pattern=r"^(\d+h)?(\d+m)?$", min_length=2), AfterValidator(_some_time)]


class LongestJobs(Sourced[Annotated[dict[Annotated[int, Field(gt=0)], TimeLimit], Field(min_length=1)]]):
    """Time limits of a queue: nodes -> the longest job on so many nodes at most, in the order of the nodes."""

    def on(self, nodes: int) -> str | None:
        """Return the limit of a job on so many nodes; None for more than the queue takes."""
        return next((limit for most, limit in sorted(self.value.items()) if nodes <= most), None)


Variable = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
"""The name of an environment variable, of which a job script makes a command."""


class Transport(Record):
    """Network that NCCL (or RCCL) has to take between nodes there.

    networks: its names, as NCCL's log prints them. provider: the provider of libfabric, where there are several.
    nccl_net: the value of NCCL_NET between nodes, so that NCCL takes no other one; a job of one node may have none at
    all. env_vars: tune it. remedy: says what to do where NCCL took another one, as the end of a sentence.
    """

    networks: Sourced[Annotated[tuple[str, ...], Field(min_length=1)]]
    provider: str | None = Field(default=None, min_length=1)
    nccl_net: str = Field(min_length=1)
    env_vars: Sourced[dict[Variable, str]]
    remedy: str = Field(min_length=1)


LauncherOption = Annotated[Line, AfterValidator(lambda text: check(text, RANKS_PER_NODE))]


class Partition(Record):
    """ReFrame partition, in ReFrame's words where it has them. Options are words of a job script, as they are."""

    name: str = Field(pattern=NAME)
    scheduler: Annotated[str, _one_of(SCHEDULERS, "scheduler")]
    launcher: Annotated[str, _one_of(LAUNCHERS, "launcher")]
    access: tuple[Annotated[Line, AfterValidator(lambda text: check(text, ACCOUNT))], ...] = ()
    """Options; one with {account} is left out where the environment names no account."""
    devices_option: Annotated[str, AfterValidator(lambda text: text and check(one_line(text), DEVICES))] | None = None
    """How a job asks for {devices} GPUs of each node; on Slurm this has a default, and nothing is asked for by ''."""
    launcher_options: tuple[LauncherOption, ...] = ()
    """Stand in the launch line, where {ranks_per_node} is the job's number."""
    full_node_options: tuple[LauncherOption, ...] = ()
    """Are added for jobs whose ranks fill their nodes."""
    cpus_per_task: int | None = Field(default=None, gt=0)
    container: Container | None = None
    """Container of the ranks."""
    features: tuple[Annotated[str, Field(pattern=NAME)], ...] = ()
    env_vars: dict[Variable, str] = {}
    """Values are no shell's text: nothing in them is replaced."""
    prepare_cmds: tuple[str, ...] = ()
    cancel_reasons: tuple[Line, ...] = ()
    """Reasons (up to a comma) for which Slurm lets a job wait, and which no waiting mends."""
    transport: Transport | None = None
    """Network for NCCL, where the machine has a network that it doesn't take by itself."""
    longest_jobs: LongestJobs | None = None
    """Limits of the queue, where they depend on a job's nodes."""
    max_jobs: int = Field(default=1, gt=0)
    """How many may run at once; two that measure disturb each other where they share a network."""
    time_limit: TimeLimit
    """How long one training run may take there; of a local one nights count it, and nothing ends it."""

    @property
    def is_local(self) -> bool:
        """Return whether jobs are processes of this machine, which no queue ends (systems/schedulers.py)."""
        return self.scheduler == "local"

    @property
    def is_slurm(self) -> bool:
        return self.scheduler in SLURM

    def _read_keys(self) -> dict[str, bool]:
        """Return the keys that only some schedulers and launchers read, and whether these do."""
        return {
            "access": not self.is_local,
            "devices_option": not self.is_local,
            "cpus_per_task": not self.is_local or self.launcher in ("srun", "alps", "jsrun"),
            "cancel_reasons": self.is_slurm,
            "transport": self.scheduler != "lsf",
        }

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if {"cuda", "rocm"} <= {*self.features}:
            raise ValueError("features should have cuda or rocm, not both")
        if self.container and self.container.is_of_srun and self.launcher != "srun":
            raise ValueError(
                f"a container of {self.container.kind} is options of srun, and the launcher is {self.launcher!r}"
            )
        for key, is_read in self._read_keys().items():
            if getattr(self, key) and not is_read:
                raise ValueError(
                    f"{key} is read by nothing where the scheduler is {self.scheduler} and the launcher {self.launcher}"
                )
        counts_cores = self.scheduler == "torque" and (self.cpus_per_task or 1) > 1
        if counts_cores and self.launcher == "mpirun" and not places_ranks(self.launcher_options):
            raise ValueError(
                "Torque counts a node once for each core, so with cpus_per_task the launcher_options of mpirun say how "
                "many ranks a node takes, such as --map-by ppr:{ranks_per_node}:node"
            )
        return self
