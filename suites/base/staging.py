"""A job may run from a folder of each node, not from the file system of all: ci/pack packs and ci/stage unpacks it.

    ci/pack
    reframe -c suites/weak_scaling.py --system frontier -S staged=yes

Thousands of ranks that load PyTorch from one parallel file system at once take many minutes.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from reframe.core.exceptions import ReframeError

import systems
from systems import Partition

ROOT = Path(systems.__file__).parents[1]
ARCHIVE = ".packed.tar"
PYTHON = '"$PAR4D_STAGED"/.venv/bin/python'
"""A job script that has staged writes the Python so."""


class NotStaged(ReframeError):
    """A job can't run from a folder of each node; the message says why."""


def command(partition: Partition, *, dry: bool, root: Path = ROOT) -> str:
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
