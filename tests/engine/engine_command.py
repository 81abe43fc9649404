"""Starts `engine train` as a user's launcher would: real processes, with a limit on their time."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

TIMEOUT_S = 300
SMALL = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(ranks: int, *options: str, under: Sequence[str] = ()) -> list[subprocess.Popen[str]]:
    """One process a rank, with the variables that torchrun would set. under: a command that starts it."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [*under, sys.executable, "-m", "engine", *options],
            env=os.environ | address | {"RANK": str(r), "LOCAL_RANK": str(r), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(ranks)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    """Exit codes, and what each said on stderr."""
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said


def train(ranks: int, *options: str) -> tuple[list[int], list[str]]:
    return finish(start(ranks, "train", *options))


def await_iteration(process: subprocess.Popen[str]) -> None:
    """Until rank 0 has reported a second iteration, so that every rank has ended the first."""
    assert process.stderr is not None
    while "iteration 2/" not in process.stderr.readline():
        assert process.poll() is None
