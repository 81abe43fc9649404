"""Ranks of a node: the words by which a launcher of MPI learns it, where no batch script tells."""

import re
from collections.abc import Sequence

PBS = ("pbs", "pbspro", "torque")
PLACED = re.compile(
    r"(?:^|\s)(?:--?(?:ppn|npernode|N|perhost|map-by|rankfile|rf|ntasks-per-node|ranks-per-node)(?=[\s=:]|$)|-rr(?=\s|$))"
)
"""Options that place ranks: those of PALS, Hydra, Intel MPI and Open MPI."""


def places_ranks(options: Sequence[str]) -> bool:
    """Return whether these options of a launcher place ranks on nodes already."""
    return PLACED.search(" ".join(options)) is not None


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
