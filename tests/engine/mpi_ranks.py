"""Ranks that mpirun starts, with a Comm over MPI; a test is skipped where there is no MPI.

python tests/engine/mpi_ranks.py FOLDER: one of them
"""

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from waiting import LONG_S

from engine.grid import Grid

HERE = Path(__file__).parent
RENDEZVOUS = {
    f"OMPI_MCA_{name}": value
    for name, value in {"pml": "ob1", "btl": "tcp,self", "btl_tcp_eager_limit": "1024"}.items()
} | {f"OMPI_MCA_btl_tcp_{side}buf": "16384" for side in ("snd", "rcv")}
"""By these Open MPI sends nothing above a kilobyte without several calls of its sender's."""


def mpirun(ranks: int) -> list[str]:
    """Return the words before a command for these ranks. Skips the test where mpirun or mpi4py isn't there."""
    found = shutil.which("mpirun")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("MPI is not here: it takes an mpirun, such as openmpi-bin's, and pip install mpi4py.")
    return [found, "--oversubscribe", "-n", str(ranks)]


def environment() -> dict[str, str]:
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    paths = os.pathsep.join(map(str, (HERE.parents[1], HERE)))
    return os.environ | as_root | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def run_mpi(
    folder: Path,
    grid: Grid,
    work: Callable[..., Any],
    timeout_s: float = LONG_S,
    *,
    messages_alone: bool = False,
    variables: Mapping[str, str] = RENDEZVOUS,
) -> list[Any]:
    """Run work(comm), a function of a test file, on every rank; return the results in rank order.

    messages_alone: messages of stages go over MPI, and all else over gloo; else MPI carries all.
    """
    (folder / "work").write_bytes(pickle.dumps((grid, work, timeout_s, messages_alone)))
    command = [*mpirun(grid.size), sys.executable, __file__, str(folder)]
    own = environment() | variables
    ended = subprocess.run(command, cwd=folder, env=own, timeout=LONG_S, capture_output=True, text=True, check=False)
    kept = [folder / str(rank) for rank in range(grid.size)]
    assert all(one.exists() for one in kept), ended.stderr
    assert ended.returncode == 0, ended.stderr
    return [pickle.loads(one.read_bytes()) for one in kept]


if __name__ == "__main__":
    import torch
    import torch.distributed as dist

    from engine.comm.backend import ChannelSource
    from engine.comm.funnel import Comm
    from engine.comm.groups import ProcessGroups
    from engine.comm.mpi import MessagesByMpi, MpiGroups, library

    place, cpu = Path(sys.argv[1]), torch.device("cpu")
    shape, asked, limit_s, alone = pickle.loads((place / "work").read_bytes())
    limit = timedelta(seconds=limit_s)
    torch.set_num_threads(1)
    if alone:
        own = library().mpi.COMM_WORLD.rank
        store = dist.FileStore(str(place / "store"), shape.size)
        dist.init_process_group("gloo", store=store, rank=own, world_size=shape.size, timeout=limit)
        backend: ChannelSource = MessagesByMpi(ProcessGroups(shape, cpu, limit), shape, cpu, limit)
    else:
        backend = MpiGroups(shape, cpu, limit)
    comm = Comm(shape, timeout=limit, backend=backend)
    (place / str(comm.rank)).write_bytes(pickle.dumps(asked(comm)))
    if alone:
        dist.destroy_process_group()
