"""A `python` for ReFrame's runs in tests and their jobs: each of its processes is forked from the server of real_ranks,
which has torch and ReFrame loaded, as loading them takes most of the time of a short job.

It is a script that asks this process, by forked_client.py, and passes on files, signals and the exit code. What runs is
what the job asks for, with its words, its environment and its folder, by the engine of this project.
"""

import atexit
import gc
import json
import logging
import multiprocessing.process
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path

from real_ranks import CONTEXT

CLIENT = Path(__file__).with_name("forked_client.py")
HEAD_BYTES = 8
FIRST = "TESTS_FIRST"
"""A process that has this variable begins with the Python in it, which may change the engine in that process alone."""
BRIEFLY = "import forked_python; forked_python.briefly()"
"""First words of a process that times no more than is allowed."""
_STARTS = threading.Lock()
"""Held while a process is started, until only this file knows of it: multiprocessing reads the ends of those that it
knows of in every start(), and waits for them as Python ends.
"""


class _Files:
    """Descriptors that a process takes along when it is started."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)

    def __getstate__(self) -> list[object]:
        return [DupFd(number) for number in self.numbers]

    def __setstate__(self, state: list[object]) -> None:
        self.numbers = [one.detach() for one in state]  # type: ignore[attr-defined]


@cache
def forked_python() -> Path:
    """Return the script, which answers for as long as this process lives."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    script, desk = Path(folder.name, "python"), socket.socket(socket.AF_UNIX)
    desk.bind(str(script.with_suffix(".socket")))
    desk.listen()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{CLIENT}" "{desk.getsockname()}" "$0" "$@"\n')
    script.chmod(0o755)
    threading.Thread(target=_answer, args=(desk,), daemon=True).start()
    return script


def _answer(desk: socket.socket) -> None:
    while True:
        client, _ = desk.accept()
        threading.Thread(target=_serve, args=(client,), daemon=True).start()


def _serve(client: socket.socket) -> None:
    """Run one process, from its start to its exit code. If its client is killed, so is it."""
    with client, suppress(OSError):  # of a client that is gone
        head, files, _, _ = socket.recv_fds(client, HEAD_BYTES, 4)
        try:
            order = json.loads(_whole(client, int.from_bytes(head)))
            process = CONTEXT.Process(target=_life, args=(_Files(files), order))
            with _STARTS:
                process.start()
                multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]  # it is watched here
        finally:
            for number in files:
                os.close(number)
        while process.sentinel not in (ready := wait([process.sentinel, client])):
            told = client.recv(1) if client in ready else b""
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(process.pid or 0, told[0] if told else signal.SIGKILL)
            if not told:
                break
        process.join()
        client.sendall((process.exitcode or 0).to_bytes(4, signed=True))


def _whole(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = client.recv(size - len(found))
        if not more:
            raise ConnectionError
        found += more
    return found


def briefly() -> None:
    """Time few calls and rounds, where nobody asks how fast it is."""
    from engine.measure import rounds
    from engine.tuning import timing

    rounds.SAMPLE_S = 2e-4
    timing.MOST = timing.FEWEST


def _life(files: _Files, order: Mapping[str, object]) -> None:
    """Do what `python -m MODULE ...` or `python FILE ...` does."""
    gc.freeze()
    for target, number in enumerate(files.numbers[:3]):
        os.dup2(number, target)
        os.close(number)
    os.environ.clear()
    os.environ.update(order["environ"])  # type: ignore[arg-type]
    os.chdir(str(order["folder"]))
    first, *words = order["words"]  # type: ignore[misc]
    module = words.pop(0) if first == "-m" else ""
    sys.argv = [module or first, *words]
    if len(files.numbers) > 3:  # of an external peer, which talks by it
        sys.argv[-1] = str(files.numbers[3])
    if module != "suites.launcher" or "local" in words:  # jobs of other systems run elsewhere
        sys.executable = str(order["python"])
    exec(os.environ.get(FIRST, ""), {})
    atexit.unregister(logging.shutdown)  # once: from Python 3.13 on a forked process has none of its parent's
    atexit.register(logging.shutdown)
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(first, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
