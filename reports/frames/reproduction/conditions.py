"""Differences of the runs here from the paper's: machine, software, clocks and settings, as far as both tell.

A fact of the paper stands beside what the results were measured with, of every machine that a verdict rests on and of
the studies that redo the claim. Versions are the same if one begins as the other: 2.4.0 is 2.4.0+cu124.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import pandas as pd

from engine.published.claims import Figure
from engine.published.conditions import TUNED, Conditions, conditions_of
from reports.frames.frame import Frames
from reports.frames.overlaps import flags
from reports.frames.reproduction.options import NOT_TUNED, is_tuned
from reports.frames.reproduction.samples import records
from reports.text import number as finite
from reports.text import plural

Standing = Literal["same", "differs", "not printed", "not recorded", "said"]
"""Outcome of a comparison of one fact; "said" is of words that no program compares."""
VERSIONS = frozenset({"torch", "cuda", "rocm", "nccl", "rccl", "driver"})
OPTIONS = frozenset({"precision", "overlap", "products"})
"""Options of a run: the same where all runs have the paper's."""
RECORDED = ["devices", "versions", "transport", "clocks", "network_settings", "commit"]
_NCCL = re.compile(r"NCCL (\d[\w.]*)")


class Fact(NamedTuple):
    """Fact of a paper's runs on a machine beside that of the runs on one here."""

    name: str
    """Key of engine.published.conditions.FACTS."""
    paper: str
    """Words of the paper; "" where it prints none."""
    here: str
    """Values of the runs here, each once; "" where none is recorded."""
    standing: Standing


class Compared(NamedTuple):
    """Conditions of the paper's machine beside those of one that measured the same figure here."""

    conditions: Conditions
    machine: str
    facts: tuple[Fact, ...]


def compared(frames: Frames, figure: Figure, machines: Iterable[str]) -> list[Compared]:
    """Compare the runs of a figure's studies on these machines with the paper's, of each of its own machines.

    A machine that is one of the paper's is compared with itself alone.
    """
    own = {claim.machine: known for claim in figure.claims if (known := conditions_of(figure.paper, claim.system))}
    found = []
    for machine in machines:
        papers = [own[machine]] if machine in own else list(own.values())
        here = facts_here(frames, machine, {redo.suite for claim in figure.claims for redo in claim.redo})
        found += [Compared(each, machine, _facts(each, here)) for each in papers]
    return found


def facts_here(frames: Frames, machine: str, studies: Iterable[str]) -> dict[str, str]:
    """Return what the good runs and contests of a machine's studies were measured with, by the names of the facts."""
    rows = pd.concat([_mine(table, machine, set(studies))[RECORDED] for table in (frames.runs, frames.contests)])
    runs = _mine(frames.runs, machine, set(studies))
    counted = runs["counted_iterations"]
    # a second training beside the papers' own, with more overlap, has a variant
    trainings = records(runs[(runs["kind"] == "train") & (runs["variant"] == "")])
    versions = [_versions(text) for text in rows["versions"]]
    libraries = [match[1] for text in rows["transport"] if (match := _NCCL.search(text))]
    amd = any("hip" in known for known in versions)
    nccl = [known.get("nccl", "") for known in versions] + libraries
    return {
        "device": _once(rows["devices"]),
        **{name: _once(known.get(name, "") for known in versions) for name in ("torch", "cuda", "driver")},
        "rocm": _once(known.get("hip", "") for known in versions),
        "nccl": "" if amd else _once(nccl),
        "rccl": _once(nccl) if amd else "",
        "plugin": _once(text for text in rows["transport"] if text.startswith("nccl")),
        "network": _once(rows["transport"]),
        "clocks": _once(rows["clocks"]),
        "settings": _once(rows["network_settings"]),
        "code": _once("the engine at " + rows["commit"].str[:8]),
        "counted": _once(plural(int(count), "iteration") for count in sorted(counted[counted > 0])),
        "precision": _once(runs["dtype"]),
        "overlap": " or ".join(dict.fromkeys(row["overlap"] for row in trainings if row["overlap"])),
        "products": _once(TUNED if is_tuned(row) else NOT_TUNED for row in trainings),
        "micro_batch": _once(f"{each:g}" for row in trainings if (each := finite(row["micro_batch"])) > 0),
    }


def _mine(table: pd.DataFrame, machine: str, studies: set[str]) -> pd.DataFrame:
    mine = table[(table["system"] == machine) & table["study"].isin(studies)]
    return mine[mine["status"] == "ok"]


def _versions(text: str) -> dict[str, str]:
    pairs = (part.split(" ", 1) for part in text.split(", "))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _once(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, values)))


def _facts(paper: Conditions, here: Mapping[str, str]) -> tuple[Fact, ...]:
    found = []
    for name, said in paper.facts.items():
        mine = here.get(name, "")
        if said or mine:
            found.append(Fact(name, said, mine, _standing(name, said, mine)))
    return tuple(found)


def _standing(name: str, said: str, here: str) -> Standing:
    if not said:
        return "not printed"
    if not here:
        return "not recorded"
    if name in VERSIONS:
        return "same" if all(_same(said, one) for one in here.split(", ")) else "differs"
    if name == "overlap":
        return "same" if all(flags(said) == flags(one) for one in here.split(" or ")) else "differs"
    if name in OPTIONS:
        return "same" if said == here else "differs"
    return "said"


def _same(said: str, here: str) -> bool:
    """Return whether one of two versions begins as the other: later parts, and what it was built with, may be left out.

    PyTorch tells of CUDA 12.5.1 that it is 12.5.
    """
    return _begins(said, here) or _begins(here, said)


def _begins(part: str, whole: str) -> bool:
    return re.fullmatch(rf"{re.escape(part)}([.+-].*)?", whole) is not None
