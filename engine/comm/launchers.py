"""Launchers, and the variables by which each tells a process its place among all. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine import yaml_text
from engine.errors import UsageError

ELASTIC, AGENTS = "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE"
"""Variables of torchrun: its run, and how many of it there are in the run."""
SPECIAL_STEPS = 0xFFFFFFF0
"""First of the numbers of Slurm's steps for batch scripts and interactive shells."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Names of a launcher's variables (launchers.yaml)."""

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def has_started(self, environ: Mapping[str, str]) -> bool:
        """Return whether the launcher has started this process. The shell of a Slurm job has a rank and a size, too."""
        if self is SRUN and (not (step := environ.get("SLURM_STEP_ID", "")).isdecimal() or int(step) >= SPECIAL_STEPS):
            return False
        return any(name in environ for name in self.marks or (*self.rank, *self.size, *self.local_rank))


LAUNCHERS = tuple(
    Launcher(name, **{kind: tuple(names) for kind, names in variables.items()})
    for name, variables in yaml_text.parse(Path(__file__).with_suffix(".yaml").read_text()).items()
)
HAND, SRUN = (next(one for one in LAUNCHERS if one.name == name) for name in ("environment", "srun"))
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
    given = {name: found for name in names if (found := number(environ, name)) is not None}
    if len(set(given.values())) > 1:
        said = " and ".join(f"{name}={found}" for name, found in given.items())
        raise UsageError(f"{said} contradict each other: unset what another launcher has left.")
    return next(iter(given.values()), None)
