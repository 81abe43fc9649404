"""Launchers, and the variables by which each tells a process its place among all. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import UsageError

ELASTIC, AGENTS = "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE"
"""Variables of torchrun: its run, and how many of it there are in the run."""
SPECIAL_STEPS = 0xFFFFFFF0
"""First of the numbers of Slurm's steps for batch scripts and interactive shells."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Names of a launcher's variables. Several for a rank agree; of sizes and nodes the first that is set counts."""

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    """variables of which one is set where the launcher has prepared MPI"""

    marks: tuple[str, ...] = ()
    """variables of which one is set in each process that it starts; by default those of the place"""

    def has_started(self, environ: Mapping[str, str]) -> bool:
        """Return whether the launcher has started this process. The shell of a Slurm job has a rank and a size, too."""
        if self is SRUN and (not (step := environ.get("SLURM_STEP_ID", "")).isdecimal() or int(step) >= SPECIAL_STEPS):
            return False
        return any(name in environ for name in self.marks or (*self.rank, *self.size, *self.local_rank))


HAND = Launcher("environment", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
"""Variables of torch, which torchrun or whoever starts processes by hand sets."""
SRUN = Launcher(
    "srun",
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    ("SLURM_LOCALID",),
    nodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    marks=("SLURM_PROCID",),
    mpi=("PMIX_RANK", "PMI_RANK", "PMI_CONTROL_PORT"),
)
LAUNCHERS = (
    HAND,
    Launcher(
        "mpirun",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        mpi=("OMPI_COMM_WORLD_RANK",),
    ),
    Launcher(
        "mpirun_rsh",
        ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK", "MPIRUN_RANK"),
        ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE", "MPIRUN_NPROCS"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"),
        mpi=("MPIRUN_RANK",),
    ),
    Launcher(
        "mpiexec",
        ("PMI_RANK", "PALS_RANKID"),
        ("PMI_SIZE", "PALS_SIZE"),
        ("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
        ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS"),
        mpi=("PMI_RANK", "PALS_RANKID", "PMI_CONTROL_PORT"),
    ),
    Launcher(
        "jsrun",
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
        mpi=("PMIX_RANK",),
    ),
    Launcher(
        "flux",
        ("FLUX_TASK_RANK",),
        ("FLUX_JOB_SIZE",),
        ("FLUX_TASK_LOCAL_ID",),
        nodes=("FLUX_JOB_NNODES",),
        marks=("FLUX_TASK_RANK",),
        mpi=("PMIX_RANK", "PMI_RANK"),
    ),
    SRUN,
)
"""Launchers that others start come first: srun starts Open MPI's and MPICH's daemons, Flux and jsrun run in jobs of
Slurm, and srun, flux and jsrun set the variables of PMI and MPI, too.
"""
STRANGERS = {"PMIX_RANK": "a launcher of PMIx", "ALPS_APP_PE": "aprun", "HOROVOD_RANK": "horovodrun", "MP_CHILD": "poe"}
"""Variables of launchers that leave out the number of ranks, or that nobody has asked for."""
PREPARES_MPI = tuple(sorted({name for launcher in LAUNCHERS for name in launcher.mpi}))


@dataclass(frozen=True, slots=True)
class Place:
    """Place of this process, as far as one launcher gives it."""

    launcher: Launcher
    rank: int | None
    size: int | None
    local_rank: int | None
    local_size: int | None
    nodes: int | None

    @classmethod
    def read(cls, launcher: Launcher, environ: Mapping[str, str]) -> "Place":
        """Read a launcher's variables. Raises UsageError for what is no number, and for ranks that disagree."""
        return cls(
            launcher,
            _read_agreed(environ, launcher.rank),
            number(environ, *launcher.size),
            _read_agreed(environ, launcher.local_rank),
            number(environ, *launcher.local_size),
            number(environ, *launcher.nodes),
        )

    @property
    def is_whole(self) -> bool:
        return self.rank is not None and self.size is not None

    def agrees_with(self, other: "Place") -> bool:
        mine, theirs = ((place.rank, place.size, place.local_rank) for place in (self, other))
        return all(a is None or b is None or a == b for a, b in zip(mine, theirs, strict=True))

    def text(self, environ: Mapping[str, str]) -> str:
        names = (self.launcher.rank, self.launcher.size, self.launcher.local_rank)
        first = (next((name for name in several if name in environ), None) for several in names)
        return ", ".join(f"{name}={environ[name]}" for name in first if name)


def number(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the number of the first of these variables that is set, or None. Raises UsageError."""
    for name in names:
        if name in environ:
            if not environ[name].isdecimal():
                raise UsageError(f"The variable {name} must be a whole number, but it is {environ[name]!r}: unset it.")
            return int(environ[name])
    return None


def has_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether some launcher has prepared MPI for this process: mpirun, mpiexec, or srun with --mpi."""
    return any(name in environ for name in PREPARES_MPI)


def _read_agreed(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    told = {name: found for name in names if (found := number(environ, name)) is not None}
    if len(set(told.values())) > 1:
        said = " and ".join(f"{name}={found}" for name, found in told.items())
        raise UsageError(f"{said} contradict each other: unset what another launcher has left.")
    return next(iter(told.values()), None)
