"""Slow nodes that a night leaves out, by Slurm's --exclude, as far as the largest of its jobs has room on others.

A node is slow if its jobs were, over all figures (reports/nights/nodes.py), by as few of the last nights as tell of it.
What is left out is tried again once all of these are past.
"""

import re
import shlex
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from engine.errors import UsageError
from night.session import NightlyTest, NightRun
from reports.nights.nodes import LATELY, NodeEffect, describe_nodes, nodes_of, slow_nodes
from reports.read.history import History, Night
from systems import System, load

OPTION = "--exclude-slow"
NODE = re.compile(r"[A-Za-z0-9][\w.-]*")
"""Form of a node's name, without what Slurm would take for a list of names."""
EXCLUDES = re.compile(r"(?:#\w+\s+)?-{0,2}(?:x|exclud\w*)\b|-x")


def check_scheduler(system: System, given: Sequence[str]) -> None:
    """Raise UsageError where nodes can't be left out, or the words for ReFrame leave some out already."""
    for partition in system.partitions:
        if not partition.is_slurm:
            where = f"partition {partition.name} of {system.name}"
            raise UsageError(f"{OPTION} takes Slurm, but the scheduler of {where} is {partition.scheduler}: omit it.")
    parser = ArgumentParser(add_help=False)
    parser.add_argument("-J", "--job-option", action="append", default=[])
    if ours := [option for option in parser.parse_known_args(given)[0].job_option if EXCLUDES.match(option)]:
        raise UsageError(f"-J {ours[0]} behind -- leaves out nodes, as {OPTION} does: give one of them.")


def leave_out(
    night: NightRun, described: Iterable[Mapping[str, Any]], chosen: Sequence[NightlyTest], past: History
) -> str:
    """Make the night's jobs leave out slow nodes; returns a sentence that says which and why."""
    lately = past.nights[-LATELY[-1] :]
    slow = slow_nodes(lately, LATELY)
    hashcodes = {test.hashcode for test in chosen}
    largest = largest_jobs(test for test in described if test["hashcode"] in hashcodes)
    out, kept = choose_nodes(slow, nodes_had(lately), largest)
    if out:
        names = dict.fromkeys([*excluded_always(load(night.system)), *(_short(each.node) for each in out)])
        night.reframe = (*night.reframe, "-J", f"exclude={','.join(names)}")
    words = [
        f"left out, as slow: {describe_nodes(out)}" if out else "",
        f"slow, but kept, as the largest job has no room without, or Slurm no such name: {describe_nodes(kept)}"
        if kept
        else "",
    ]
    return f"Nodes {'; '.join(filter(None, words)) or 'left out: none, as none is known to be slow'}."


def nodes_had(nights: Iterable[Night]) -> dict[str, set[str]]:
    """Return the nodes that the jobs of these nights had, by partition."""
    had = defaultdict[str, set[str]](set)
    for night in nights:
        for job in night.jobs:
            had[job.key.partition] |= nodes_of(job)
    return had


def largest_jobs(described: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the nodes of the largest job of these tests, by partition."""
    largest = defaultdict[str, int](int)
    for test in described:
        first = max((int(job["nodes"]) for job in test["fixture_jobs"]), default=0)
        for case in test["cases"]:
            if not case["skipped"]:
                largest[case["partition"]] = max(largest[case["partition"]], first, int(case["nodes"]))
    return largest


def choose_nodes(
    slow: Iterable[NodeEffect], had: Mapping[str, Collection[str]], largest: Mapping[str, int]
) -> tuple[list[NodeEffect], list[NodeEffect]]:
    """Part slow nodes into those to leave out, the slowest first, and those without which a job has no room on nodes
    that jobs are known to get, or that Slurm can't be given the name of.
    """
    left, out, kept = {partition: {*nodes} for partition, nodes in had.items()}, list[NodeEffect](), list[NodeEffect]()
    for each in slow:
        its = [partition for partition, nodes in left.items() if each.node in nodes]
        fits = all(len(left[partition]) > largest.get(partition, 0) for partition in its)
        if fits and NODE.fullmatch(each.node):
            out.append(each)
            for partition in its:
                left[partition].remove(each.node)
        else:
            kept.append(each)
    return out, kept


def excluded_always(system: System) -> list[str]:
    """Return the nodes that the system's file leaves out, which another --exclude would bring back."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("-x", "--exclude", action="append", default=[])
    words = [word for partition in system.partitions for option in partition.access for word in shlex.split(option)]
    found: list[str] = parser.parse_known_args(words)[0].exclude
    return found


def _short(node: str) -> str:
    """Return the name that Slurm has of a host."""
    return node.partition(".")[0]
