"""The launch line of a job: the launcher with its options, a container where its partition has one, and Python."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import reframe as rfm
from reframe.core.builtins import variable
from reframe.core.exceptions import ReframeError

import systems
from systems.partition import RANKS_PER_NODE, SEPARATORS, Container, fill, places_ranks, placing

ROOT = Path(systems.__file__).parents[1]


class NotLaunched(ReframeError):
    """A job can't start its ranks; the message says why."""


class Launched(rfm.RegressionTestPlugin):
    """Test whose job starts Python with a module of the project on each rank."""

    python = variable(str, value=sys.executable)
    partition: systems.Partition

    @property
    def container(self) -> Container | None:
        """Return what Python runs in. What runs beside ReFrame has no srun, of which Pyxis is a part."""
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
        container, own_python = self.container, self.python != sys.executable
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
        python = [
            "env",
            f"PYTHONPATH={':'.join(filter(None, (str(ROOT), *packages)))}",
            self.python if own_python else container.python,
        ]
        start = container.command(folders, self.stagedir, self.partition.features, ROOT)
        return " ".join([*start, *map(shlex.quote, python)])
