"""Faults of nights in a row, planted on the virtual cluster, and what each has to be told as.

`prove_nights.py --only NAME` runs the nights of one of FAULTS: real jobs of Slurm on four nodes, one a night, whose
link is so slow that other work on the machine hardly moves it. What is planted is the link's rate, of all nodes or of
one, the nodes that a job gets, or another commit of the engine. All nights are kept in one folder, and a fault whose
nights were broken off goes on with the next one. They are judged when all of the fault have run, by themselves.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import log
from pathlib import Path

from slower_engine import clone, plant

from engine.errors import RunError, UsageError
from engine.result.provenance import CHECKOUT, git_state
from night.procedure import nightly_tests, say
from night.session import ROOT, NightlyTest, NightRun, night_name
from reports.nights.episodes import Episode
from reports.nights.reference import make
from reports.nights.report import NightReport, as_text, night_reports
from reports.read.history import NODES, History, history
from systems import references
from systems.references import FEWEST_JOBS

QUIET = 25
"""Nights before anything is planted."""
USUAL_KBIT, SLOW_KBIT = 100_000, 88_000
"""Rates of the links: without a fault, and of slow ones."""
A_NIGHT = 0.006
"""Share of its rate that a creeping link loses a night."""
PAIRS = (("n0", "n1"), ("n1", "n2"), ("n0", "n2"))
SLOW_NODE = "n3"
NODES_NEEDED = 4
RUNS = ((4, 8), (2, 6), (5, 9), (3, 6), (4, 7))
"""Nights with the slow node, and without it after them: the queue draws it in a third of nights."""
MOST_ALARMS = 3
"""Alarms that a state may raise before it is known."""
IN_NIGHTS, OFF_BY, WITHIN = 10, 3, 0.25
"""A step is found in so many nights, told to begin that near to its night, and its size, or a slope, is right by that
share of it.
"""
SETTINGS = ("--setvar", "Bandwidth.keep=no", "--setvar", "canary=no")
MOST_LOST = 3
"""Jobs that a night may lose, as a machine under load does now and then."""
NIGHT_S = 900.0
FUNNEL = "engine/comm/funnel.py"
UPDATE = """

_run = Comm.run


def _slower(self: Comm, *words, **options):
    began = time.perf_counter()
    done = _run(self, *words, **options)
    time.sleep({by} * (time.perf_counter() - began))
    return done


Comm.run = _slower
"""
"""Addition of the update to the engine: a wait after each collective, by what that took."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a night."""

    nodes: tuple[str, str]
    kbit: int = USUAL_KBIT
    """rate of all links, but of the slow node's"""
    updated: bool = False
    """whether jobs run the updated engine"""


@dataclass(frozen=True, slots=True)
class Planted:
    """Fault, its nights, and what finds what is told wrongly of them."""

    title: str
    nights: Sequence[Conditions]
    wrong: Callable[[Sequence[NightReport]], list[str]]


def with_fault(worse: Sequence[Conditions], mended: int) -> list[Conditions]:
    """Return nights without the fault, with it, and mended; jobs get pairs of nodes in turn."""
    nights = [*[Conditions(PAIRS[0])] * QUIET, *worse, *[Conditions(PAIRS[0])] * mended]
    return [replace(one, nodes=nodes) for one, nodes in zip(nights, cycle(PAIRS), strict=False)]


def with_slow_node() -> list[Conditions]:
    """Return nights of which some have the slow node, in runs."""
    others, partners = cycle(PAIRS), cycle(("n0", "n1", "n2"))
    nights = [Conditions(nodes) for nodes in islice(others, QUIET)]
    for slow, without in RUNS:
        nights += [Conditions((partner, SLOW_NODE)) for partner in islice(partners, slow)]
        nights += [Conditions(nodes) for nodes in islice(others, without)]
    return nights


def wrong_of_step(reports: Sequence[NightReport]) -> list[str]:
    """Say what is told wrongly of a slower link."""
    wrong = wrong_of_one(reports, "step", log(USUAL_KBIT / SLOW_KBIT))
    return wrong + [f"changed: {'; '.join(one.changed)}" for one in reports[-1].episodes if one.changed]


def wrong_of_update(reports: Sequence[NightReport]) -> list[str]:
    """Say what is told wrongly of an update: it is a step, and the commit changed with it."""
    wrong = wrong_of_one(reports, "step", log(USUAL_KBIT / SLOW_KBIT))
    told = [[words.split()[0] for words in one.changed] for one in reports[-1].episodes]
    return wrong + [f"changed: {' '.join(names) or 'nothing'}" for names in told if names != ["commit"]]


def wrong_of_creep(reports: Sequence[NightReport]) -> list[str]:
    """Say what is told wrongly of a link that gets slower every night."""
    wrong = wrong_of_one(reports, "creep", None)
    for one in reports[-1].episodes:
        slope, low, high = one.shape.slope, one.shape.low, one.shape.high
        if not (abs(slope / A_NIGHT - 1) <= WITHIN and 0 < low <= slope <= high):
            wrong.append(f"{slope:.3%} a night ({low:.3%} to {high:.3%}), not {A_NIGHT:.1%}")
    return wrong


def wrong_of_one(reports: Sequence[NightReport], kind: str, size: float | None) -> list[str]:
    """Say what is wrong of the one episode there has to be, of that shape and size, which is over in the end."""
    alarms, known = alarms_of(reports), reports[-1].episodes
    if len(alarms) != 1 or len(known) != 1:
        return [f"{len(alarms)} alarms"]
    (at, _), (one,) = alarms[0], known
    wrong = {
        f"found in night {at + 1 - QUIET}": kind == "step" and not 0 <= at - QUIET < IN_NIGHTS,
        f"since night {one.since + 1 - QUIET}": kind == "step" and abs(one.since - QUIET) > OFF_BY,
        f"a {one.shape.kind}": one.shape.kind != kind,
        f"{one.slowdowns[0].size:.3f} worse": size is not None and abs(one.slowdowns[0].size / size - 1) > WITHIN,
        "explained by nodes": one.nodes.outcome == "explained",
        f"{one.state}, and not closed": one.state != "closed",
    }
    return [words for words, is_wrong in wrong.items() if is_wrong]


def wrong_of_node(reports: Sequence[NightReport]) -> list[str]:
    """Say what is told wrongly of a slow node that comes and goes."""
    alarms, last, others = alarms_of(reports), reports[-1], {node for pair in PAIRS for node in pair}
    wrong = [f"{len(alarms)} alarms"] if len(alarms) > MOST_ALARMS else []
    wrong += ["an episode is open"] if last.opened or last.still_open else []
    wrong += [
        f"slow: {', '.join(node.node for node in one.nodes.slow)}"
        for _, one in alarms
        if {node.node for node in one.nodes.slow} & others
    ]
    if not (lines := lines_of_node(last)) or any(f"{node} (" in line for line in lines for node in others):
        wrong.append("no line about that node alone")
    return wrong


def lines_of_node(report: NightReport) -> list[str]:
    """Return what a night's text says of the slow node's effect."""
    return [line.strip() for line in as_text(report).splitlines() if f"{SLOW_NODE} (" in line]


def alarms_of(reports: Sequence[NightReport]) -> list[tuple[int, Episode]]:
    """Return the nights that raised an alarm, by position, with its episode as it was known then."""
    return [(one.at, episode) for one in reports for episode in one.opened]


SLOWER = [Conditions(PAIRS[0], SLOW_KBIT)] * 6
CREEPING = [Conditions(PAIRS[0], round(USUAL_KBIT * (1 - A_NIGHT) ** number)) for number in range(1, 37)]
UPDATED = [Conditions(PAIRS[0], updated=True)] * 6
FAULTS = {
    "step": Planted("all links at 88 instead of 100 Mbit/s", with_fault(SLOWER, 6), wrong_of_step),
    "creep": Planted("all links 0.6 % slower each night", with_fault(CREEPING, 8), wrong_of_creep),
    "node": Planted(f"a slow link of {SLOW_NODE}, in runs of nights", with_slow_node(), wrong_of_node),
    "software": Planted("an update of the engine that waits", with_fault(UPDATED, 6), wrong_of_update),
}


def prove(name: str, first: NightRun, cluster: Callable[..., None]) -> bool:
    """Run the nights of a fault that its folder lacks, judge all of them and say what was told; returns whether that
    was right. first: a night of the folder. cluster: runs ci/cluster. Raises RunError, UsageError.
    """
    fault = FAULTS[name]
    select = ("--checkpath", str(Path(__file__).with_name("planted_nights_tests.py")))
    first = replace(first, select=select, settings=SETTINGS)
    past = nights_of(name, first)
    tests = [test for test in nightly_tests(first.describe(), past) if test.name.endswith(f"={name}")]
    updated = update(first.folder / "engine") if any(one.updated for one in fault.nights) else None
    kbit = 0
    for number, planned in islice(enumerate(fault.nights, 1), measured(past), None):
        if planned.kbit != kbit:
            kbit = planned.kbit
            cluster("link", f"{kbit}kbit")
            if name == "node":
                cluster("link", f"{SLOW_KBIT}kbit", SLOW_NODE)
        options = ["-J", f"nodelist={','.join(planned.nodes)}"]
        options += ["--setvar", f"Bandwidth.env_vars=PYTHONPATH:{updated}"] if planned.updated else []
        told = run(replace(first, reframe=tuple(options)), tests, name, number)
        say(f"{name}, night {number} of {len(fault.nights)}: links of {kbit / 1000:g} Mbit/s, {told}")
    past = nights_of(name, first)
    reports = night_reports(past, references.references(first.system), last=len(past.nights))
    wrong, last = fault.wrong(reports), reports[-1]
    verdict = f"WRONGLY TOLD ({'; '.join(wrong)})" if wrong else "told as what it is"
    said = [f"{fault.title}: {verdict}, in {len(reports)} nights in {first.folder}"]
    said += [f"    {sentence}" for sentence in (*map(last.tell, last.episodes), *lines_of_node(last))]
    sys.stdout.write("\n".join([*said, ""]))
    sys.stdout.flush()
    return not wrong


def run(night: NightRun, tests: Sequence[NightlyTest], name: str, number: int) -> str:
    """Run a night's job, in another night if it is lost, and make the references when there are jobs enough; returns
    what it measured, in words. Raises RunError if that is nothing in MOST_LOST nights.
    """
    log_file = night.folder / "reframe.out"
    for _ in range(MOST_LOST):
        with log_file.open("a") as log, redirect_stderr(log):
            replace(night, name=night_name(), ends=time.monotonic() + NIGHT_S).run(tests)
        past = nights_of(name, night)
        if measured(past) == number:
            break
        say(f"{name}, night {number}: its job was lost")
    else:
        raise RunError(f"Night {number} of {name} has measured nothing: see {log_file}.")
    if number == FEWEST_JOBS:
        make(past, references.references(night.system))
    (job,) = past.nights[-1].jobs
    ((value, unit),) = job.figures.values()
    return f"{value / 1e6:.2f} M{unit} on {job.state[NODES]}"


def nights_of(name: str, night: NightRun) -> History:
    """Return the nights of a fault."""
    past = history(night.database, night.system)
    own = (one for one in past.nights if all(job.key.point.endswith(f"={name}") for job in one.jobs))
    return replace(past, nights=tuple(own))


def measured(past: History) -> int:
    """Return how many nights have figures."""
    return sum(any(job.figures for job in night.jobs) for night in past.nights)


def update(folder: Path) -> Path:
    """Clone the last commit, unless that is done, and commit a slower engine on top of it. Raises UsageError where
    there is no commit.
    """
    if git_state(CHECKOUT)[0] is None:
        raise UsageError(f"{ROOT} is no working tree of git, so no update of it can be planted.")
    if not (folder / ".git").exists():
        clone(folder)
    if "_slower" not in (folder / FUNNEL).read_text():
        plant(folder, FUNNEL, UPDATE.format(by=USUAL_KBIT / SLOW_KBIT - 1))
    return folder
