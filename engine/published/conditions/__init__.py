"""Conditions of the papers' runs: what each paper says of the machine, software and settings of its runs. No torch.

A file a paper, one entry a machine. A fact that is left out isn't printed in the paper. reports/frames/reproduction/
conditions.py sets them against what the results here were measured with.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import Field, ValidationError

from engine import yaml_text
from engine.errors import UsageError
from engine.published import PLACE
from engine.schema import Record, first_problem

FOLDER = Path(__file__).parent
FACTS = MappingProxyType(
    {
        **{"device": "Device", "torch": "PyTorch", "cuda": "CUDA", "rocm": "ROCm", "nccl": "NCCL", "rccl": "RCCL"},
        **{"mpi": "MPI", "plugin": "Network plug-in", "network": "Network", "driver": "Driver", "clocks": "Clocks"},
        **{"settings": "Network settings", "code": "Code", "counted": "Counted", "precision": "Number format"},
        **{"overlap": "Overlap", "products": "Matrix products", "micro_batch": "Micro-batch"},
    }
)
"""Names of the facts, in the order in which pages show them."""
EVERY_RUN = frozenset(FACTS) - {"cuda", "rocm", "nccl", "rccl", "mpi", "plugin"}
"""Facts that every run has, so that pages say of a paper that it doesn't print them."""
TUNED = "tuned"
"""Matrix products that take the fastest of their modes."""


class Conditions(Record):
    """Conditions of a paper's runs on one machine, in the paper's words; "" where it doesn't print them."""

    paper: str
    system: str
    """Machine as the paper's numbers name it."""
    where: str = Field(pattern=PLACE)
    """Place that says so."""
    device: str = ""
    torch: str = ""
    cuda: str = ""
    rocm: str = ""
    nccl: str = ""
    rccl: str = ""
    mpi: str = ""
    plugin: str = ""
    """Plug-in by which NCCL or RCCL reaches the network."""
    network: str = ""
    driver: str = ""
    clocks: str = ""
    settings: str = ""
    """Variables that steer the network's libraries."""
    code: str = ""
    """Sequential code that was parallelised."""
    counted: str = ""
    """Iterations that count."""
    precision: str = ""
    """Number format of the computation, as the engine writes it."""
    overlap: str = ""
    """Communication that trainings hide, as the engine writes it."""
    products: Literal["", "tuned"] = ""
    """Whether each layer's matrix products take the fastest of their modes."""
    micro_batch: str = ""
    """Sequences that a rank takes at once."""

    @property
    def facts(self) -> dict[str, str]:
        """Facts by name, with "" for those that the paper doesn't print, without ones that don't apply there."""
        found = {name: str(getattr(self, name)) for name in FACTS}
        return {name: said for name, said in found.items() if said or name in EVERY_RUN}


@cache
def conditions(folder: Path = FOLDER) -> tuple[Conditions, ...]:
    """Read the conditions of all papers. Raises UsageError for a file that has something else, or a machine twice."""
    found = tuple(one for path in sorted(folder.glob("*.yaml")) for one in _read(path))
    known = set[tuple[str, str]]()
    for one in found:
        if (one.paper, one.system) in known:
            raise UsageError(f"{one.paper}.yaml has {one.system} twice: put all of its facts into one entry.")
        known.add((one.paper, one.system))
    return found


def conditions_of(paper: str, system: str) -> Conditions | None:
    """Return the conditions of a paper's runs on a machine; None where the paper names no machine."""
    return next((one for one in conditions() if (one.paper, one.system) == (paper, system)), None)


def _read(path: Path) -> Iterator[Conditions]:
    entries = yaml_text.read(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{path} is no list of machines with the facts of their runs.")
    for entry in entries:
        try:
            yield Conditions.model_validate({**entry, "paper": path.stem})
        except ValidationError as error:
            raise UsageError(f"{path} has no valid conditions: {first_problem(error)}") from None
