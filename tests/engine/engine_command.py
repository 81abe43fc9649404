"""Starts `engine train` as a user's launcher would: real processes, with a limit on their time.

They are forked from the clean server of real_ranks, which has torch loaded: loading it would take most of their time.
What happens while it is loaded is for tests that start a Python of their own, as start() does where it is asked to.
"""

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from real_ranks import CONTEXT
from waiting import LONG_S

SMALL = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic"]


def free_port() -> int:
    """Draw a port where nobody listens, below those that Linux gives to any connection in the meantime."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Forked:
    """`python -m engine` with these options, of which a test may do and read what it may of a subprocess.Popen."""

    def __init__(
        self, environment: Mapping[str, str], options: Sequence[str], before: Callable[[], object] | None = None
    ) -> None:
        here, there = CONTEXT.Pipe(duplex=False)
        words = (there, dict(environment), str(Path.cwd()), list(options), before)
        self._process = CONTEXT.Process(target=_command, args=words, daemon=True)
        self._process.start()
        there.close()
        self.stderr = os.fdopen(os.dup(here.fileno()))
        here.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"The process has not ended within {timeout:g} s.")
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None and self._process.pid:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[None, str]:
        """Nothing, and what it has said on stderr until its end. Raises TimeoutError when its time is over."""
        limit = threading.Timer(timeout, self.kill)
        limit.start()
        try:
            with self.stderr:
                said = self.stderr.read()
            self.wait(timeout)
            if limit.finished.is_set():
                raise TimeoutError(f"The process had not ended within {timeout:g} s, when it had said: {said}")
        finally:
            limit.cancel()
        return None, said


def _command(
    errors: Connection,
    environment: dict[str, str],
    folder: str,
    options: list[str],
    before: Callable[[], object] | None,
) -> None:
    """The life of one process: as if it had been started in that folder with these variables."""
    gc.freeze()
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    errors.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if before is not None:
        before()
    from engine.cli.main import main

    sys.exit(main(options))


def start(
    ranks: int, *options: str, under: Sequence[str] = (), anew: bool = False, before: Callable[[], object] | None = None
) -> list[subprocess.Popen[str] | Forked]:
    """One process a rank, with the variables that torchrun would set.

    anew: a Python of its own for each, started under a command if one is given. before: called in each that is forked,
    before the engine begins.
    """
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    processes: list[subprocess.Popen[str] | Forked] = []
    for rank in range(ranks):
        own = os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        if not anew and not under:
            processes.append(Forked(own, options, before))
            continue
        command = [*under, sys.executable, "-m", "engine", *options]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, env=own, stdout=pipe, stderr=pipe, text=True))
    return processes


def finish(processes: Sequence[subprocess.Popen[str] | Forked]) -> tuple[list[int], list[str]]:
    """Exit codes, and what each said on stderr."""
    try:
        said = [process.communicate(timeout=LONG_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], said


def train(ranks: int, *options: str, before: Callable[[], object] | None = None) -> tuple[list[int], list[str]]:
    return finish(start(ranks, "train", *options, before=before))


def await_iteration(process: subprocess.Popen[str] | Forked) -> None:
    """Until rank 0 has reported a second iteration, so that every rank has ended the first."""
    assert process.stderr is not None
    while "iteration 2/" not in process.stderr.readline():
        assert process.poll() is None
