"""A node, or the head: a first process in namespaces of its own, which starts the daemons there."""

import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from virtual_cluster import slurm
from virtual_cluster.machine import COMMAND_TIMEOUT_S, PATH, Problem, last_line, run, start_ticks
from virtual_cluster.record import STATE, Process

HERE = Path(__file__).resolve().parents[1]  # the folder that the package is in
LOCAL = "local"
"""Each node has this folder to itself, in memory, as nodes without a disk do; they share all else."""
NAMESPACES = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork")


@dataclass(frozen=True, slots=True)
class Node:
    """A node that waits for the word to start its daemons."""

    process: Process
    input: IO[str]

    def start_daemons(self) -> None:
        """Tell the node that its network is ready."""
        self.input.write("go\n")
        self.input.close()


def begin(name: str) -> Node:
    """Start a node's first process. Raises Problem."""
    with (STATE / f"{name}.log").open("w") as log:
        first = subprocess.Popen(
            [*NAMESPACES, sys.executable, "-B", "-m", "virtual_cluster", "inside", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=HERE,
            env={"PATH": PATH, "LC_ALL": "C"},
            start_new_session=True,
        )
    assert first.stdin is not None
    assert first.stdout is not None
    ready, _, _ = select.select([first.stdout], [], [], COMMAND_TIMEOUT_S)
    answer = first.stdout.readline() if ready else ""
    if not answer:
        raise Problem(f"{name} can't be made ({last_words(name)}).")
    pid = int(answer)
    return Node(Process(pid, start_ticks(pid)), first.stdin)


def live(name: str) -> NoReturn:
    """Be a node's first process: name it, start its daemons, reap what ends. When this ends, all of the node does."""
    os.chdir("/")
    pid = Path("/proc/self").readlink()  # as this machine counts, until the node has a /proc of its own
    socket.sethostname(name)
    run("mount", "-n", "-t", "proc", "proc", "/proc")
    run("mount", "-n", "-t", "sysfs", "sysfs", "/sys")
    run("mount", "-n", "--bind", str(STATE / "hosts"), "/etc/hosts")
    run("mount", "-n", "-t", "tmpfs", "tmpfs", str(STATE / LOCAL))
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        sys.exit(1)  # `up` has given up
    for daemon in slurm.daemons(name):
        subprocess.Popen(daemon, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def last_words(name: str) -> str:
    return last_line((STATE / f"{name}.log").read_text())
