"""Making, removing and examining the cluster as a whole."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable

from virtual_cluster import network, node, slurm
from virtual_cluster.machine import Problem
from virtual_cluster.record import HEAD, STATE, Cluster, Shape, load, save

START_TIMEOUT_S, END_TIMEOUT_S = 300, 300


def make(shape: Shape) -> None:
    """Make the cluster, whole or not at all. Raises Problem."""
    slurm.refuse_another()
    network.refuse_what_is_taken()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    os.umask(0o022)
    STATE.mkdir()
    (STATE / node.LOCAL).mkdir()
    try:
        _build(shape)
    except BaseException:
        remove()
        raise


def _interrupt(number: int, _: object) -> None:
    raise Problem(f"{signal.Signals(number).name} came, so there is no cluster.")


def _build(shape: Shape) -> None:
    """Write the files, then start the head and the nodes, join them, and start Slurm. Raises Problem."""
    addresses = network.addresses(shape.nodes)
    slurm.configure(addresses, shape.ranks_per_node, slow_pairs=shape.slow_pairs)
    nodes: dict[str, node.Node] = {}
    for name in (HEAD, *addresses):
        nodes[name] = node.begin(name)
        save(Cluster(shape, {key: begun.process for key, begun in nodes.items()}))
    pids = {name: begun.process.pid for name, begun in nodes.items()}
    network.join(pids, addresses, shape.rate, slow_pairs=shape.slow_pairs)
    nodes[HEAD].start_daemons()
    _wait_for("slurmctld", slurm.answers, [HEAD])
    for name in addresses:
        nodes[name].start_daemons()
    _wait_for("Slurm on the nodes", lambda: set(slurm.states().values()) == {"idle"}, addresses)


def _wait_for(what: str, ready: Callable[[], bool], names: Iterable[str]) -> None:
    """Return when it is ready. Raises Problem, with the last words of the nodes that were asked, if that takes long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Problem):
            if ready():
                return
        time.sleep(0.1)
    words = "; ".join(f"{name}: {node.last_words(name)}" for name in names)
    raise Problem(f"{what} was not ready after {START_TIMEOUT_S} s ({words}).")


def is_there() -> bool:
    """Say whether there is a cluster, or a part of one."""
    return STATE.exists() or slurm.configured()


def remove() -> None:
    """End every process of the cluster, and remove its link and files, whichever of them are there. Raises Problem."""
    recorded = load()
    processes = recorded.processes.values() if recorded else ()
    for process in processes:
        if process.lives():
            os.kill(process.pid, signal.SIGKILL)  # a namespace's first process: the kernel ends all the others with it
    deadline = time.monotonic() + END_TIMEOUT_S
    while any(process.lives() for process in processes):
        if time.monotonic() > deadline:
            raise Problem(f"some processes did not end within {END_TIMEOUT_S} s: run `ci/cluster down` again.")
        time.sleep(0.05)
    if STATE.exists() and network.has_link():
        network.remove_link()
    slurm.unconfigure()
    shutil.rmtree(STATE, ignore_errors=True)


def faults(cluster: Cluster | None) -> list[str]:
    """Say what is wrong with a cluster that should be up."""
    processes = cluster.processes.items() if cluster else ()
    ended = [f"{name} has ended" for name, process in processes if not process.lives()]
    if cluster is None or ended or not cluster.whole():
        return ended or ["its making was broken off"]
    try:
        found = slurm.states()
    except Problem:
        return ["slurmctld does not answer"]
    bad = ("down", "drain", "fail", "unknown")
    return [f"{name} is {state}" for name, state in found.items() if state.startswith(bad) or state.endswith("*")]
