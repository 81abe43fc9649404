"""Ranks that mpirun starts, with a Comm over MPI; a test is skipped where there is no MPI.

python tests/engine/mpi_ranks.py FOLDER: one of them
"""

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from waiting import LONG_S

from engine.grid import Grid

HERE = Path(__file__).parent


def mpirun(ranks: int) -> list[str]:
    """The words before a command that so many ranks run. Skips the test where mpirun or mpi4py isn't there."""
    found = shutil.which("mpirun")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("MPI is not here: it takes an mpirun, such as openmpi-bin's, and pip install mpi4py.")
    return [found, "--oversubscribe", "-n", str(ranks)]


def environment() -> dict[str, str]:
    """What ranks of mpirun need here, whoever tests."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    paths = os.pathsep.join(map(str, (HERE.parents[1], HERE)))
    return os.environ | as_root | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def run_mpi(folder: Path, grid: Grid, work: Callable[..., Any], timeout_s: float = LONG_S) -> list[Any]:
    """work(comm) on every rank, a function of a test file; what each returned, in rank order."""
    (folder / "work").write_bytes(pickle.dumps((grid, work, timeout_s)))
    command = [*mpirun(grid.size), sys.executable, __file__, str(folder)]
    ended = subprocess.run(command, env=environment(), timeout=LONG_S, capture_output=True, text=True, check=False)
    kept = [folder / str(rank) for rank in range(grid.size)]
    assert all(one.exists() for one in kept), ended.stderr
    return [pickle.loads(one.read_bytes()) for one in kept]


if __name__ == "__main__":
    import torch

    from engine.comm.funnel import Comm
    from engine.comm.mpi import MpiGroups

    place = Path(sys.argv[1])
    shape, asked, limit_s = pickle.loads((place / "work").read_bytes())
    limit = timedelta(seconds=limit_s)
    comm = Comm(shape, timeout=limit, backend=MpiGroups(shape, torch.device("cpu"), limit))
    (place / str(comm.rank)).write_bytes(pickle.dumps(asked(comm)))
