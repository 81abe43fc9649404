"""A virtual cluster on one Linux machine: nodes with slow links between them, and Slurm over them.

    ci/cluster up [--nodes 4] [--ranks-per-node 2] [--link 1gbit] [--slow-pairs]
    ci/cluster link 900mbit        # another rate for the links of the cluster that is up
    ci/cluster link 90mbit n3      # for that of one node alone
    ci/cluster status
    ci/cluster down

A node is a network, a process, a host name and a mount namespace in which one slurmd runs. Its eth0 leads to a bridge
in the namespaces of the head, where slurmctld runs, and is limited to the link's rate in each direction. What runs on
one node talks over that node's loopback. With --slow-pairs n0 and n1 are a pair, n2 and n3, and so on: each has one
link to all others, of 15/184 of a link's rate, as cards with NVLink between two and PCIe between others have
(colossal-ai 5.2, System II). While it is up, sbatch, srun and squeue speak to it in every shell:

    reframe -c suites/overlap_ablation.py --system vcluster -r

`up` needs Linux, root, and packages of Debian, which it installs where they are missing. `down` ends whatever runs on
the cluster and leaves nothing behind but those packages.
"""

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from command_line import Parser
from virtual_cluster import cluster, machine, network, slurm
from virtual_cluster.machine import Misuse, Problem, say
from virtual_cluster.record import HEAD, STATE, Shape, load, save

MOST = 64  # nodes, and ranks a node


def main(words: Sequence[str]) -> int:
    """Do what the command line says. The exit code is 0, or 1 for what fails, or 2 for bad use."""
    try:
        wanted = parse(words)
        if sys.platform != "linux":
            raise Problem("the virtual cluster is made of Linux namespaces, and this is not Linux.")
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), machine.PATH])
        if wanted.command == "status":
            return status()
        if os.geteuid() != 0:
            raise Problem(f"`ci/cluster {wanted.command}` handles namespaces and daemons, which takes root: use sudo.")
        with Path(__file__).open() as lock:  # the lock is on this file: nothing is left behind
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Problem("another ci/cluster is at work: wait until it has ended.") from None
            if wanted.command == "up":
                return up(wanted.nodes, wanted.ranks_per_node, wanted.link, slow_pairs=wanted.slow_pairs)
            return link(wanted.rate, wanted.node) if wanted.command == "link" else down()
    except Problem as problem:
        say(str(problem))
        return problem.code


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the command line, or end with 2 and what is wrong with it."""

    def number(text: str) -> int:
        if not (text.isdecimal() and 1 <= int(text) <= MOST):
            raise argparse.ArgumentTypeError(f"it goes from 1 to {MOST}, but {text!r} was given")
        return int(text)

    parser = Parser("ci/cluster", __doc__)
    commands = parser.add_subparsers(dest="command", metavar="up|link|status|down", required=True)
    make = commands.add_parser("up", help="make the cluster and start Slurm on it")
    make.add_argument("--nodes", type=number, default=4, help=f"1 to {MOST}, called n0, n1 ... (default: 4)")
    make.add_argument("--ranks-per-node", type=number, default=2, help="tasks that fit on a node (default: 2)")
    make.add_argument("--link", default="1gbit", help="rate of each node's link, as tc writes it (default: 1gbit)")
    make.add_argument("--slow-pairs", action="store_true", help="slow links between pairs of nodes (colossal-ai 5.2)")
    other = commands.add_parser("link", help="give the links of the cluster that is up another rate")
    other.add_argument("rate", metavar="RATE", help="as tc writes it, such as 900mbit")
    other.add_argument("node", metavar="NODE", nargs="*", help="whose link it is (default: those of all nodes)")
    commands.add_parser("status", help="say what is up; exit 0 if all of it works, else 1")
    commands.add_parser("down", help="end all that runs on the cluster, and the cluster")
    return parser.parse_args(words)


def up(nodes: int, ranks_per_node: int, link: str, *, slow_pairs: bool) -> int:
    """Make the cluster, unless it is there already."""
    machine.install()
    shape = Shape(nodes, ranks_per_node, network.rate(link), link, slow_pairs)
    if STATE.exists():
        return compare(shape)
    cluster.make(shape)
    tasks = nodes * ranks_per_node
    say(f"{shape} are up, n0 to n{nodes - 1}: try `srun -N{nodes} -n{tasks} hostname`.")
    return 0


def link(wanted: str, nodes: Sequence[str]) -> int:
    """Change the rate of a running cluster's links, or of those of these nodes alone. Raises Problem where there is no
    cluster that works, or no such node.
    """
    there = load()
    if there is None or cluster.faults(there):
        raise Problem("no cluster is up that works: run `ci/cluster up` first.")
    every = [name for name in there.processes if name != HEAD]
    if unknown := sorted({*nodes} - {*every}):
        raise Misuse(f"{unknown[0]} is no node of this cluster: there are {', '.join(every)}.")
    rate, names = network.rate(wanted), list(nodes) or every
    pids = {name: process.pid for name, process in there.processes.items()}
    network.change(pids, names, rate, between_pairs=there.shape.slow_pairs and not nodes)
    if nodes:  # the cluster's own rate stays, and what it is called names the exception
        shape = replace(there.shape, link=f"{there.shape.link}, {' and '.join(names)} of {wanted}")
    else:
        shape = replace(there.shape, rate=rate, link=wanted)
    save(replace(there, shape=shape))
    say(f"the links of {', '.join(names)} are of {wanted} now.")
    return 0


def compare(wanted: Shape) -> int:
    """Say so where there is a cluster already. Raises Problem unless it is the same and works."""
    there = load()
    troubles = cluster.faults(there)
    if there is None or troubles:
        raise Problem(f"a cluster is there already, but {troubles[0]}: run `ci/cluster down` first.")
    if there.shape != wanted:
        raise Problem(f"another cluster is up already, of {there.shape}: run `ci/cluster down` first.")
    say(f"this cluster is up already: {there.shape}.")
    return 0


def status() -> int:
    if not STATE.exists():
        say("no cluster is up.")
        return 1
    there = load()
    troubles = cluster.faults(there)
    for trouble in troubles:
        say(f"{trouble}.")
    if there:
        sys.stdout.write(f"{there.shape}\n")
    with contextlib.suppress(Problem):
        sys.stdout.write("".join(f"{name} {state}\n" for name, state in slurm.states().items()))
    return 1 if troubles else 0


def down() -> int:
    there = cluster.is_there()
    cluster.remove()
    say("the cluster is down; Debian's packages stay." if there else "no cluster is up.")
    return 0
