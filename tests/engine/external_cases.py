"""Networks so small that an external peer trains them at once, and how a contest on them is held."""

from pathlib import Path

import pytest
from waiting import LONG_S

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.errors import RunError
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers import external_side
from engine.peers.alternate import measure
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.peer import check_torch
from engine.result.schema.peers import PeerContest
from engine.training_record import OptimConfig

GPT = GPTConfig("tiny", layers=4, hidden=32, heads=4, vocabulary=64, sequence=16)
LLAMA = LlamaConfig("tiny", layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=64, sequence=16)
CASE = Case(
    GPT,
    Batch(8),
    optim=OptimConfig(learning_rate=1e-2),
    warmup=3,
    rounds=2,
    steps=2,
    timeout_s=LONG_S,
    meeting_timeout_s=LONG_S,
)
PYTHON_OF = external_side.python_of


def skip_with_older_torch(contest: Comparison) -> None:
    """Skip the test that calls it where this PyTorch is too old for a peer that splits networks by its means."""
    if contest.splits and contest.library is None:
        try:
            check_torch(contest.name, "2.10")
        except Unavailable as lacking:
            pytest.skip(str(lacking))


def fork_externals(python: Path) -> None:
    """In the process that calls this, external peers without a library of their own are started by that Python."""
    external_side.python_of = lambda library: python if library is None else PYTHON_OF(library)


def hold(comm: Comm, contest: Comparison, case: Case, python: Path | None = None) -> PeerContest | str:
    """On every rank; or what was told instead. python: see fork_externals."""
    if python is not None:
        fork_externals(python)
    launch = Launch(comm.rank, comm.grid.size, comm.rank, "test", "127.0.0.1", 0)
    try:
        return measure(comm, contest, case, launch=launch)
    except (RunError, Unavailable) as error:
        return f"{type(error).__name__}: {error}"
