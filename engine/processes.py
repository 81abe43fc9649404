"""Processes that are started here: each ends in time, with all that it has started, also where this one is ended."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a process. SIGHUP comes with a terminal that is lost."""
PAUSE_S = 0.05
"""Time between two looks at a process."""
KILLED_S = 10.0
"""A process that was killed is left alone after it, as a driver that hangs may keep it."""

Process = subprocess.Popen[Any]
Answer = TypeVar("Answer")


def supervise(
    words: Sequence[str | Path], wait: Callable[[Process], Answer], end: Callable[[Process], object], **how: Any
) -> Answer:
    """Start a command, and give what wait does; however that ends, also by a signal, end is called. how: as in Popen.

    No signal comes between the start and the moment from which there is something to end.
    """
    with ExitStack() as deaf:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        unblock = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        deaf.callback(unblock)
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=unblock, **how)
        try:
            deaf.close()
            return wait(process)
        finally:
            end(process)


def carry_out(
    words: Sequence[str | Path],
    output: IO[bytes],
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> tuple[int | None, float]:
    """Run a command, and kill it and all that it has started when it has ended, or its time is over; returns its exit
    code, or None, and the seconds that it took.
    """
    start = time.monotonic()

    def wait(process: Process) -> tuple[Process, bool]:
        return process, ends(process, start + timeout_s)

    process, in_time = supervise(
        words,
        wait,
        kill_group,
        cwd=folder,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=os.environ | dict(environment),
        start_new_session=True,
    )
    return process.returncode if in_time else None, time.monotonic() - start


def ends(process: Process, until: float) -> bool:
    """Say whether a process ends by then, on time.monotonic()'s clock. It isn't reaped, so that the number of its group
    stays its own, for kill_group.
    """
    while process.returncode is None:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(PAUSE_S)
    return True


def kill_group(process: Process) -> None:
    """Kill a process and the group that it leads, unless it has been waited for: then its number may be another's."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


def start_fork_server(*modules: str) -> None:
    """Start the server of which worker processes are forked, unless it runs. It loads the modules meanwhile.

    Its processes have one thread each, and are deaf to Ctrl-C, by which their parent ends.
    """
    from multiprocessing import resource_tracker
    from multiprocessing.forkserver import ensure_running, set_forkserver_preload

    set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # by itself the server would start it, which unblocks SIGINT
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]


@contextmanager
def worker_processes(count: int) -> "Iterator[ProcessPoolExecutor]":
    """Give an executor of so many processes of the fork server. Where its user fails, what is left isn't begun."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    executor = ProcessPoolExecutor(count, multiprocessing.get_context("forkserver"))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def end_by_signals(code: int | None = None) -> None:
    """Let each ENDING signal end this process and those that it supervises, unless it is ignored, as under nohup.

    code: to end with; by default as a shell tells the signal.
    """

    def end(number: int, frame: FrameType | None) -> None:
        """Raise an exception, so that what runs is ended first; no other signal may come between."""
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number if code is None else code)

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
