"""Containers: the image that a partition's ranks run in, and where its words stand in a launch line."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from engine.schema import Record

GPU_OPTIONS = {"rocm": "--rocm", "cuda": "--nv"}
"""Options that show the GPUs to Apptainer, by a feature of the partition. Hooks do it for other kinds."""
SEPARATORS = ":,"
"""No container's list of folders can have these in a name."""


def one_line(text: str) -> str:
    """Return the text. Raises ValueError where it is empty, or would be several lines of a job script."""
    if not text.strip() or not text.isprintable():
        raise ValueError("should be one line of printable characters, and not empty")
    return text


Line = Annotated[str, AfterValidator(one_line)]


class Container(Record):
    """Image that ranks run in."""

    kind: Literal["apptainer", "singularity", "sarus", "pyxis"]
    image: Line
    """Path, of Apptainer and Singularity also one below the checkout, or the name that the kind knows it by."""
    options: tuple[Line, ...] = ()
    """Stand behind the kind's own."""
    python: Line = "python3"
    """The image's Python, which has PyTorch and the packages that Par4D needs."""

    @property
    def is_of_srun(self) -> bool:
        """Return whether the container is options of srun, and no command of its own."""
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
