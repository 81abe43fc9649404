"""A rank is killed in mid-run: the other one has to end by itself, soon, and its result has to say who is lost."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from engine.errors import EngineError, RunError
from engine.result import schema
from engine.result.schema.gpu_check import Finding
from gpu_check.budget import RANKS_WAIT
from gpu_check.findings import passes_if, reported

NAME = "a rank that is killed"
TIMEOUT_S = 20.0
"""Every collective is given up after it, so the other rank has ended then; this and the next two on GPUs."""
LEAVE_S = 5.0
"""A process takes so long to write its result and to end."""
BEGIN_S = 60.0
"""Both ranks have made a step by then."""
RUN = ("--model", "gpt-test", "--grid", "2x1x1x1", "--batch-size", "8", "--data", "synthetic", "--energy", "off")
LOST = re.compile(r"Rank 1 \(process \d+ on \S+\) is gone, killed or crashed\b")


class Left(NamedTuple):
    """Remains of the other rank.

    code: its exit code; None if it had to be ended. seconds: passed from the kill to its end. status, reason: the
    result's.
    """

    code: int | None
    seconds: float
    status: str
    reason: str


def lost_rank(device: torch.device) -> Finding:
    """Kill a rank on the second card, or on a processor."""
    cards = torch.cuda.device_count() if device.type == "cuda" else 2
    if cards < 2:
        return reported(NAME, "not run: it takes two GPUs, and this machine shows one")
    with tempfile.TemporaryDirectory() as folder:
        return judged(_left(device.type, Path(folder) / "result.json"), device.type)


def judged(left: Left, device_type: str = "cuda") -> Finding:
    """Judge the other rank: it has to end in time by itself, with a failed result that names the lost one."""
    times = RANKS_WAIT[device_type]
    ended = left.code is not None and left.seconds <= times * (TIMEOUT_S + LEAVE_S)
    good = ended and left.code == 1 and left.status == "failed" and LOST.match(left.reason) is not None
    how = f"ended with exit code {left.code}" if left.code is not None else "did not end and was killed"
    want = f"the other ends within the time-out of {times * TIMEOUT_S:g} s, and its result names the lost one"
    sentence = f"the other {how}; its result: {left.status}, {left.reason or 'without a reason'}"
    return passes_if(good, NAME, want, sentence, figure=left.seconds, unit="s")


def _left(device_type: str, out: Path) -> Left:
    """Train with two ranks, kill one and wait for the other. Raises RunError if they don't come to train."""
    times = RANKS_WAIT[device_type]
    timeout = f"{times * TIMEOUT_S:g}"
    words = ["train", *RUN, "--device", device_type, "--timeout", timeout, "--iterations", "1000000"]
    with _ranks([*words, "--out", str(out)], out.with_name("log")) as (first, second):
        _await_steps(first, out.with_name("log"), times * BEGIN_S)
        second.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        try:
            code: int | None = first.wait(times * (TIMEOUT_S + 2 * LEAVE_S))
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - killed
    try:
        result = schema.read(out)
    except EngineError as error:
        return Left(code, seconds, "unreadable", str(error))
    return Left(code, seconds, result.status, result.reason or "")


@contextmanager
def _ranks(words: list[str], log: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start two ranks as a launcher does; both end with this context. log: gets what rank 0 says."""
    port = random.SystemRandom().randrange(10_000, 32_768)  # Linux gives no connection such a one meanwhile
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    place["TORCH_COMPILE_DISABLE"] = "1"  # there is no time for a compiler
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(2):
            own = os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with (log if rank == 0 else log.with_name("other")).open("wb") as said:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "engine", *words],
                        env=own,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=said,
                    )
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
        sys.stderr.write(log.read_text(errors="replace")[-2000:])


def _await_steps(first: "subprocess.Popen[bytes]", log: Path, begin_s: float) -> None:
    """Wait until rank 0 reports its second iteration, so that both have made one."""
    until = time.monotonic() + begin_s
    while b"iteration 2/" not in log.read_bytes():
        if first.poll() is not None or time.monotonic() > until:
            raise RunError(f"Two ranks did not come to train within {begin_s:g} s; what the first said is in the log.")
        time.sleep(0.05)
