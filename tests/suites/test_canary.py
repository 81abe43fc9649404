"""The canary: its work never changes, and every rank of a job runs it on the engine's device."""

import ast
import hashlib
import re
import subprocess
import sys

import pytest
from running import ROOT
from test_launch import FLUX, HYDRA, JSRUN, MVAPICH, OPEN_MPI, PALS, PMI2, SRUN, TORCHRUN
from waiting import LONG_S

from engine.comm.launch import from_environment
from engine.comm.launchers import LAUNCHERS
from suites.base import canary
from suites.base.engine_test import CANARY_PROGRAM

TIMED = {"SIZE", "COPIED", "SMALL, PRODUCTS, COPIES", "WARM_UP, ROUNDS"}


def timed_part() -> str:
    """Return the lines that decide a round's seconds."""
    program = CANARY_PROGRAM.read_text()
    every = ast.parse(program).body
    numbers = [one for one in every if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]).strip("()") in TIMED]
    (rounds,) = (one for one in every if isinstance(one, ast.FunctionDef) and one.name == "rounds")
    parts = (*numbers, *rounds.body[1:])  # without its docstring
    return "\n".join(filter(None, (ast.get_source_segment(program, one) for one in parts)))


def test_what_it_times_has_never_changed() -> None:
    """Whoever has to change it gives its figure another name, too (systems/references.py)."""
    assert hashlib.sha256(timed_part().encode()).hexdigest() == (
        "a978bd588b1ae40d72740c14c9aacfc9f6b75cf834edaef42508dc5d37a5f973"
    )


def test_it_knows_the_launchers_that_the_engine_knows_in_their_order() -> None:
    assert tuple(name for launcher in LAUNCHERS for name in launcher.local_rank) == canary.LOCAL_RANKS


@pytest.mark.parametrize(
    "environ",
    [
        SRUN,
        SRUN | PMI2,
        PALS,
        HYDRA,
        JSRUN,
        FLUX,
        OPEN_MPI,
        MVAPICH,
        TORCHRUN,
        SRUN | TORCHRUN,
        OPEN_MPI | {"SLURM_LOCALID": "0", "SLURM_PROCID": "0"},
    ],
)
def test_each_rank_times_the_gpu_that_the_engine_takes(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Chosen(Exception):
        pass

    def choose(device: int) -> None:
        raise Chosen(device)

    for name in canary.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 16)
    monkeypatch.setattr("torch.cuda.set_device", choose)
    with pytest.raises(Chosen) as chosen:
        canary.main("cuda")
    assert chosen.value.args == (from_environment(environ | {"MASTER_ADDR": "a"}).local_rank,)


def test_it_knows_nothing_of_the_engine_and_says_what_a_round_takes() -> None:
    assert not re.search(r"\b(engine|suites|systems|reports)\.", CANARY_PROGRAM.read_text().split("import os")[1])
    done = subprocess.run(
        [sys.executable, str(CANARY_PROGRAM), "cpu"],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=True,
    )
    assert re.fullmatch(r"canary \d+\.\d{9}\n", done.stdout)
