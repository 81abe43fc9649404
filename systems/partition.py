"""Partitions: how ReFrame runs jobs on a part of a machine, in which container, and how launchers place ranks."""

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from engine.errors import nearest
from engine.schema import Record
from systems.device import Sourced

SCHEDULERS = ("local", "slurm", "squeue", "pbs", "pbspro", "torque", "lsf", "flux")
"""Of ReFrame's others, SGE asks for neither tasks nor what `access` says, OAR for no processors, ssh for nothing."""
LAUNCHERS = (
    *("srun", "ibrun", "alps", "mpiexec", "mpirun", "mpirun-openmpi", "mpirun-intelmpi"),
    *("lrun", "lrun-gpu", "jsrun", "torchrun-one-node"),
)
"""Launchers of a job's ranks: ReFrame's, and those of schedulers.py. srunalloc asks for neither GPUs nor `access`."""
SLURM = ("slurm", "squeue")
"""squeue is Slurm without its accounting."""
PBS = ("pbs", "pbspro", "torque")
NAME = r"^[a-zA-Z_][a-zA-Z0-9_-]*$"
"""Form of a name of a system, a partition or a feature in ReFrame."""

ACCOUNT, DEVICES, RANKS_PER_NODE = "account", "devices", "ranks_per_node"
PLACES = {ACCOUNT: "access", DEVICES: "devices_option", RANKS_PER_NODE: "launcher_options and full_node_options"}
"""Keys of a partition in which a placeholder, a name in braces, is replaced; other braces are an option's own."""
NEAR = 0.8
"""Similarity (of 1) from which a name is taken for a misspelt placeholder."""
_BRACES = re.compile(r"(?<!\$)\{([^{}]*)\}")
"""Placeholder; a shell's ${NAME} is none."""
_NAME = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:[:!].*)?")
_PLACED = re.compile(
    r"(?:^|\s)(?:--?(?:ppn|npernode|N|perhost|map-by|rankfile|rf|ntasks-per-node|ranks-per-node)(?=[\s=:]|$)|-rr(?=\s|$))"
)
"""Options that place ranks: those of PALS, Hydra, Intel MPI and Open MPI."""

GPU_OPTIONS = {"rocm": "--rocm", "cuda": "--nv"}
"""Options that show the GPUs to Apptainer, by a feature of the partition. Hooks do it for other kinds."""
SEPARATORS = ":,"
"""Characters that no container's list of folders can have in a name."""


def has_placeholder(placeholder: str, text: str) -> bool:
    return placeholder in _BRACES.findall(text)


def fill(text: str, placeholder: str, value: object) -> str:
    """Put a value in place of a placeholder, wherever it stands."""
    return _BRACES.sub(lambda match: str(value) if match[1] == placeholder else match[0], text)


def _check_placeholders(placeholder: str) -> Callable[[str], str]:
    """Return a validator of a key that this placeholder belongs to.

    It raises ValueError for a placeholder of another key, and for what is nearly one: nobody means it as it is.
    """

    def check(text: str) -> str:
        for inside in _BRACES.findall(text):
            if inside == placeholder or not (name := _NAME.fullmatch(inside)):
                continue
            for meant in difflib.get_close_matches(name[1].lower().replace("-", "_"), PLACES, n=1, cutoff=NEAR):
                if meant == placeholder:
                    raise ValueError(f"{{{inside}}} should be {{{placeholder}}}")
                raise ValueError(
                    f"{{{inside}}} is none of its placeholders: {{{meant}}} is one of {PLACES[meant]} alone"
                )
        return text

    return check


def places_ranks(options: Sequence[str]) -> bool:
    """Return whether these options of a launcher place ranks on nodes already."""
    return _PLACED.search(" ".join(options)) is not None


def placing(scheduler: str, launcher: str, ranks_per_node: int) -> list[str]:
    """Return the options that place ranks on nodes, of launchers that would else fill the processors of a node first.

    Slurm's and LSF's launchers need none, nor do ALPS and ibrun, and an MPI's mpirun under PBS counts the lines that
    $PBS_NODEFILE has of a node.
    """
    if launcher == "mpiexec":  # PALS's and Hydra's
        return ["--ppn", str(ranks_per_node)] if scheduler in PBS else []
    if launcher == "mpirun-openmpi":
        return ["--map-by", f"ppr:{ranks_per_node}:node"]
    return ["-ppn", str(ranks_per_node)] if launcher == "mpirun-intelmpi" else []


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("should be one line of printable characters, and not empty")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
LauncherOption = Annotated[Line, AfterValidator(_check_placeholders(RANKS_PER_NODE))]
DevicesOption = Annotated[str, AfterValidator(lambda text: text and _check_placeholders(DEVICES)(_one_line(text)))]
Variable = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
"""Name of an environment variable, of which a job script makes a command."""


class Container(Record):
    """Image that ranks run in."""

    kind: Literal["apptainer", "singularity", "sarus", "pyxis"]
    image: Line
    """Path, of Apptainer and Singularity also one below the checkout, or the name that the kind knows it by."""
    options: tuple[Line, ...] = ()
    """Options behind the kind's own."""
    python: Line = "python3"
    """The image's Python, which has PyTorch and the packages that Par4D needs."""

    @property
    def is_of_srun(self) -> bool:
        """Whether the container is options of srun, and no command of its own."""
        return self.kind == "pyxis"

    def launcher_options(self, folders: Mapping[str, str], workdir: str) -> list[str]:
        """Return the words that srun takes. folders: what is mounted, by its place on the node -> in the container."""
        if not self.is_of_srun:
            return []
        mounts = ",".join(f"{node}:{inside}" for node, inside in folders.items())
        words = [f"--container-image={self.image}", f"--container-mounts={mounts}", f"--container-workdir={workdir}"]
        return [shlex.quote(word) for word in (*words, *self.options)]

    def command(self, folders: Mapping[str, str], workdir: str, features: tuple[str, ...], root: Path) -> list[str]:
        """Return the words between the launcher and what runs in the container. root: of the checkout."""
        if self.is_of_srun:
            return []
        if self.kind == "sarus":
            words = ["sarus", "run"]
            words += [f"--mount=type=bind,source={node},destination={inside}" for node, inside in folders.items()]
            words += [f"--workdir={workdir}", *self.options, self.image]
        else:
            image = self.image if "://" in self.image else str(root / self.image)
            words = [self.kind, "exec", *(option for feature, option in GPU_OPTIONS.items() if feature in features)]
            bound = ",".join(node if node == inside else f"{node}:{inside}" for node, inside in folders.items())
            words += ["--bind", bound, "--pwd", workdir, *self.options, image]
        return [shlex.quote(word) for word in words]


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
    """Time limits of a queue: nodes -> the longest job on that number of nodes at most, in the order of the nodes."""

    def on(self, nodes: int) -> str | None:
        """Return the limit of a job on these nodes; None for more than the queue takes."""
        return next((limit for most, limit in sorted(self.value.items()) if nodes <= most), None)


class Transport(Record):
    """Network that NCCL (or RCCL) has to take between nodes there."""

    networks: Sourced[Annotated[tuple[str, ...], Field(min_length=1)]]
    """Its names in NCCL's log."""
    provider: str | None = Field(default=None, min_length=1)
    """Provider of libfabric, where there are several."""
    nccl_net: str = Field(min_length=1)
    """Value of NCCL_NET between nodes, so that NCCL takes no other one; a job of one node may have none at all."""
    env_vars: Sourced[dict[Variable, str]]
    """Variables that tune it."""
    remedy: str = Field(min_length=1)
    """Advice where NCCL took another one, as the end of a sentence."""


class Partition(Record):
    """ReFrame partition, in ReFrame's words where it has them. Options are words of a job script, as they are."""

    name: str = Field(pattern=NAME)
    scheduler: Annotated[str, _one_of(SCHEDULERS, "scheduler")]
    launcher: Annotated[str, _one_of(LAUNCHERS, "launcher")]
    access: tuple[Annotated[Line, AfterValidator(_check_placeholders(ACCOUNT))], ...] = ()
    """Options; one with {account} is left out where the environment names no account."""
    devices_option: DevicesOption | None = None
    """How a job asks for {devices} GPUs of each node; on Slurm this has a default, and nothing is asked for by ''."""
    launcher_options: tuple[LauncherOption, ...] = ()
    """Options in the launch line, where {ranks_per_node} is the job's number."""
    full_node_options: tuple[LauncherOption, ...] = ()
    """Options added for jobs whose ranks fill their nodes."""
    cpus_per_task: int | None = Field(default=None, gt=0)
    container: Container | None = None
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
    """Jobs that may run at once; two that measure disturb each other where they share a network."""
    time_limit: TimeLimit
    """Limit of one training run there; of a local one nights count it, and nothing ends it."""

    @property
    def is_local(self) -> bool:
        """Whether jobs are processes of this machine, which no queue ends (schedulers.py)."""
        return self.scheduler == "local"

    @property
    def is_slurm(self) -> bool:
        return self.scheduler in SLURM

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if {"cuda", "rocm"} <= {*self.features}:
            raise ValueError("features should have cuda or rocm, not both")
        if self.container and self.container.is_of_srun and self.launcher != "srun":
            raise ValueError(
                f"a container of {self.container.kind} is options of srun, and the launcher is {self.launcher!r}"
            )
        is_read = {  # keys that only some schedulers and launchers read
            "access": not self.is_local,
            "devices_option": not self.is_local,
            "cpus_per_task": not self.is_local or self.launcher in ("srun", "alps", "jsrun"),
            "cancel_reasons": self.is_slurm,
            "transport": self.scheduler != "lsf",
        }
        if unread := next((key for key, read in is_read.items() if getattr(self, key) and not read), None):
            raise ValueError(
                f"{unread} is read by nothing where the scheduler is {self.scheduler} and the launcher {self.launcher}"
            )
        counts_cores = self.scheduler == "torque" and (self.cpus_per_task or 1) > 1
        if counts_cores and self.launcher == "mpirun" and not places_ranks(self.launcher_options):
            raise ValueError(
                "Torque counts a node once for each core, so with cpus_per_task the launcher_options of mpirun say how "
                "many ranks a node takes, such as --map-by ppr:{ranks_per_node}:node"
            )
        return self
