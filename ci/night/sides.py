"""Data, nodes and versions of software that both commits of a night had in common, by the results of its jobs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from engine.result.schema import ResultError
from engine.result.schema.peers import PeersResult, parse
from reports import text
from reports.read.history import NIGHT
from reports.read.run_reports import sessions, stored_results

OWN = "engine"
"""Name of the commit among a side's versions, in which both sides may differ."""
NEEDED = ("data", "nodes", "torch", "python")
"""Conditions that a side has to tell before it is called the same."""
LONGEST = 60
"""Characters of a value that are shown."""


def results_of(database: Path, night: str) -> list[PeersResult]:
    """Read the good results of a night's jobs; those that are none are told by the history."""
    found = []
    for uuid, report in sessions(database):
        if report is None or not isinstance(info := report["session_info"], dict) or info.get(NIGHT) != night:
            continue
        for stored in stored_results(report, uuid):
            if stored.data is not None and stored.failure is None:
                try:
                    found.append(parse(stored.data, stored.source))
                except ResultError:
                    continue
    return [result for result in found if result.status == "ok"]


def remarks(results: Sequence[PeersResult]) -> list[str]:
    """Say in sentences whether both commits met on the same data, nodes and versions, and what was not as it should be
    in some jobs.
    """
    said = defaultdict[str, int](int)
    for result in results:
        for sentence in dict.fromkeys(_differences(result)):
            said[sentence] += 1
    jobs = len(results)
    told = [f"In {count} of {text.plural(jobs, 'job')} {sentence}." for sentence, count in said.items()]
    if results and not said:
        told = [f"In {text.plural(jobs, 'job')} both commits had the same data, nodes and versions of software."]
    codes = {(result.provenance.git_commit, result.provenance.git_dirty) for result in results}
    if len(codes) > 1:
        told.append("The working tree has changed between jobs, so they are of different engines: run the night again.")
    elif any(_is_the_commit(result) for result in results):
        told.append("The working tree has no changes since that commit, so both engines are the same.")
    return told


def _differences(result: PeersResult) -> Iterator[str]:
    """Yield clauses on what the sides of a job did not have in common, or do not tell."""
    for contest in result.comparisons:
        for job in contest.jobs:
            ours, theirs = job.ours.versions, job.peer.versions
            for name in sorted((ours.keys() | theirs.keys()) - {OWN}):
                if name in ours and name in theirs and ours[name] != theirs[name]:
                    values = [text.clean(side[name], LONGEST) for side in (ours, theirs)]
                    yield f"the commits had different {name}: {values[0]} here, {values[1]} there"
            nodes = ", ".join(result.provenance.hosts)
            if (there := ours.get("nodes")) and len(contest.jobs) == 1 and there != nodes:
                yield f"the engines were on {text.clean(there, LONGEST)}, but the job on {text.clean(nodes, LONGEST)}"
            for whose, side in (("this engine", ours), ("the commit", theirs)):
                if missing := [name for name in NEEDED if name not in side]:
                    yield f"{whose} does not tell its {_list(missing)}: only equal losses show that both did the same"


def _is_the_commit(result: PeersResult) -> bool:
    commit, clean = result.provenance.git_commit, result.provenance.git_dirty is False
    peers = {job.peer.versions.get(OWN) for contest in result.comparisons for job in contest.jobs}
    return clean and commit is not None and peers == {commit}


def _list(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
