"""Launch line of a job: the launcher with its options, a container where its partition has one, and Python.

    ci/pack
    reframe -c suites/weak_scaling.py --system frontier -S staged=yes

runs a job from a folder of each node (ci/stage): thousands of ranks that load PyTorch from one parallel file system at
once take many minutes.
"""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import reframe as rfm
from reframe.core.builtins import variable
from reframe.core.exceptions import ReframeError

import systems
from systems import Partition
from systems.partition import RANKS_PER_NODE, SEPARATORS, Container, fill, places_ranks, placing

ROOT = Path(systems.__file__).parents[1]
ARCHIVE = ".packed.tar"
STAGED_PYTHON = '"$PAR4D_STAGED"/.venv/bin/python'
"""Python of a job script that has staged."""


class NotLaunched(ReframeError):
    """Error of a job that can't start its ranks."""


class NotStaged(ReframeError):
    """Error of a job that can't run from a folder of each node."""


class Launched(rfm.RegressionTestPlugin):
    """Test whose job starts Python with a module of the project on each rank."""

    python = variable(str, value=sys.executable)
    partition: Partition

    @property
    def container(self) -> Container | None:
        """Container that Python runs in. What runs beside ReFrame has no srun, of which Pyxis is a part."""
        container = self.partition.container
        return None if container and container.is_of_srun and self.local else container

    def write_launcher(self, *, full: bool = False) -> None:
        """Give the job's launcher its options, and all that it asks the job for. full: whether ranks fill their nodes.

        ReFrame tells the job of it later, and a canary's launch line is written before.
        """
        partition, per_node = self.partition, self.num_tasks_per_node or 1
        self.num_cpus_per_task = partition.cpus_per_task
        self.job.num_tasks, self.job.num_tasks_per_node = self.num_tasks, self.num_tasks_per_node
        self.job.num_cpus_per_task = self.num_cpus_per_task
        own = [*partition.launcher_options, *(partition.full_node_options if full else ())]
        words = [] if places_ranks(own) else placing(partition.scheduler, partition.launcher, per_node)
        self.job.launcher.options = [*words, *(fill(option, RANKS_PER_NODE, per_node) for option in own)]

    def in_container(self, words: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
        """Return the shell's words up to Python, and give the launcher those of a container that are its options.

        words: what Python gets; folders among them are mounted, and those of PYTHONPATH in the partition's env_vars.
        elsewhere: folders that have another place in the container -> that place. Raises NotLaunched.
        """
        container = self.container
        if container is None:
            return shlex.quote(self.python)
        packages = self.partition.env_vars.get("PYTHONPATH", "").split(":")
        named = [word for word in (*packages, *(word.removeprefix("hf:") for word in words)) if word.startswith("/")]
        folders = {folder: folder for folder in (str(ROOT), self.stagedir, *named)} | dict(elsewhere or {})
        for folder in folders:
            if any(character in folder for character in SEPARATORS):
                raise NotLaunched(
                    f"{folder} can't be mounted in a container, whose folders are a list with ':' and ',': rename it"
                )
        self.job.launcher.options += container.launcher_options(folders, self.stagedir)
        own_python = self.python if self.python != sys.executable else container.python
        python = ["env", f"PYTHONPATH={':'.join(filter(None, (str(ROOT), *packages)))}", own_python]
        start = container.command(folders, self.stagedir, self.partition.features, ROOT)
        return " ".join([*start, *map(shlex.quote, python)])


def staging_command(partition: Partition, *, dry: bool, root: Path = ROOT) -> str:
    """Return the line of a job script that stages. A dry run needs nothing packed.

    Raises NotStaged where ranks have a container, the scheduler copies to no nodes, or what is packed isn't as new as
    what it was packed of.
    """
    if partition.container:
        raise NotStaged(
            f"staged=yes copies .venv, and ranks of {partition.name} run in the container {partition.container.image}, "
            "which is one file already: leave it out"
        )
    if not partition.is_slurm:
        raise NotStaged(f"staged=yes takes Slurm's sbcast, which {partition.scheduler} doesn't have: leave it out")
    archive = root / ARCHIVE
    if not dry:
        if not archive.exists():
            raise NotStaged(f"staged=yes takes {archive}, which isn't there: run ci/pack first")
        made = archive.stat().st_mtime_ns
        if newer := next((file for file in _sources(root) if file.stat().st_mtime_ns > made), None):
            raise NotStaged(f"{newer} is newer than {archive}: run ci/pack again")
    return f". {shlex.quote(str(root / 'ci' / 'stage'))} {shlex.quote(str(archive))}"


def _sources(root: Path) -> Iterator[Path]:
    """Give the files of the project that a job may run or read; measurements of machines are not among them."""
    yield from (root / ".venv").glob("par4d-installed")
    for kind in ("py", "yaml"):
        yield from (root / "engine").glob(f"**/*.{kind}")
        yield from (root / "systems").glob(f"*.{kind}")
