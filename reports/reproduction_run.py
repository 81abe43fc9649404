"""Plan and run of what redoes published claims on a system, within a budget of node-hours.

A claim takes part if a run there could give it a verdict: on the paper's machine each that something reads, elsewhere
those that say who is ahead, and what depends on no machine.
"""

import math
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import systems
from engine import processes
from engine.errors import UsageError
from engine.options import check_folder
from engine.output import complain
from engine.published.claims import ANY, Claim, Figure, Redo
from engine.result.judges.peers import FEWEST_JOBS
from engine.result.judges.reproduction import says_who_is_ahead
from reports.frames.reproduction.samples import U_NET, place_of, plain
from reports.frames.reproduction.sources import figure_of, sources_of
from reports.text import plural
from suites import redo as suites
from suites.redo import Selection

AT_HOME_ONLY = frozenset({"weak_scaling", "strong_scaling"})
"""Suites whose claims are judged by the paper's own points alone (frames/reproduction/scaling.py)."""
OF_GPUS = frozenset({"p2p"})
"""Suites whose claims are about NCCL."""
ANOTHER_MACHINES = "a number of another machine"
REPEAT, TIMEOUT_S = 3, 86400.0
RESULTS = Path("results")
"""Folder in which ReFrame keeps results where it runs."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Claim that the plan doesn't redo, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Runs on a system, the cheapest first."""

    system: str
    repeat: int
    """Jobs of each test."""
    runs: tuple[Selection, ...]
    places: tuple[str, ...]
    """Figures that they redo a part of."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def node_hours(self) -> float:
        """Node-hours that all of it takes, at most."""
        return self.repeat * sum(run.node_hours for run in self.runs)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Selection of a claim."""

    place: str
    """Figure."""
    claim: str
    selection: Selection


def plan(figures: Sequence[Figure], system: str, *, repeat: int, node_hours: float = math.inf) -> Plan:
    """Plan what redoes the claims of figures, those first that add the least node-hours.

    Raises UsageError where nothing is to be run, or nothing of it fits.
    """
    wanted, left_out = list[_Wanted](), list[LeftOut]()
    for figure in figures:
        for claim in figure.claims:
            found = _of_claim(claim, system)
            if isinstance(found, str):
                left_out.append(LeftOut(f"{figure.paper} {claim.place}", found))
            else:
                place = f"{figure.paper} {figure.where}"
                wanted += [_Wanted(place, f"{figure.paper} {claim.place}", one) for one in found]
    if not wanted:
        reasons = ", ".join(f"{why} ({count})" for why, count in reasons_of(left_out))
        raise UsageError(f"Nothing that runs on {system} would tell a claim of these: {reasons}.")
    chosen, beyond = _within(wanted, node_hours / repeat)
    if not chosen:
        least = min(wanted, key=lambda one: one.selection.node_hours)
        raise UsageError(_no_room(least, system, repeat, node_hours))
    left_out += [LeftOut(one.claim, f"beyond {node_hours:g} node-hours") for one in beyond]
    places = tuple(dict.fromkeys(one.place for one in wanted if one in chosen))
    return Plan(system, repeat, tuple(suites.together(one.selection for one in chosen)), places, tuple(left_out))


def plan_within(
    chosen: Sequence[Figure], system: str | None, node_hours: float | None, repeat: int | None, *, dry_run: bool
) -> Plan:
    """Plan as the options of the command say. system: this machine unless one is named. Raises UsageError."""
    repeat = REPEAT if repeat is None else repeat
    if repeat < 1:
        raise UsageError(f"--repeat is 1 or more jobs of each test, but {repeat} was given.")
    if node_hours is None and not dry_run:
        raise UsageError("--run needs --node-hours, the most that all jobs may take: --dry-run says what they would.")
    if node_hours is not None and not 0 < node_hours < math.inf:
        raise UsageError(f"--node-hours is a positive number, but {node_hours:g} was given.")
    known = systems.named(system)
    if why := known.no_jobs():
        raise UsageError(why)
    return plan(chosen, known.name, repeat=repeat, node_hours=math.inf if node_hours is None else node_hours)


def _within(wanted: Sequence[_Wanted], node_hours: float) -> tuple[list[_Wanted], list[_Wanted]]:
    """Choose selections until the node-hours of one job of each test are spent; returns those beyond them, too."""
    chosen, rest, tests = list[_Wanted](), list(wanted), dict[tuple[object, ...], float]()

    def added(one: _Wanted) -> dict[tuple[object, ...], float]:
        return {job: hours for job, hours in one.selection.jobs.items() if job not in tests}

    while rest:
        least = min(rest, key=lambda one: sum(added(one).values()))
        if sum(tests.values()) + sum(added(least).values()) > node_hours * (1 + 1e-9):
            break
        tests |= added(least)
        chosen.append(least)
        rest.remove(least)
    return chosen, rest


def _no_room(least: _Wanted, system: str, repeat: int, node_hours: float) -> str:
    words, hours = shlex.join(least.selection.words(system, repeat)), least.selection.node_hours
    fewer = int(node_hours / hours)
    other = f", or --repeat {fewer}" if fewer >= FEWEST_JOBS else ""
    return (
        f"{node_hours:g} node-hours have no room for the cheapest, {words}, which takes up to {repeat * hours:.3g}: "
        f"give --node-hours {math.ceil(1000 * repeat * hours - 1e-6) / 1000:g}{other}."
    )


def _of_claim(claim: Claim, system: str) -> list[Selection] | str:
    """Return the selections that redo a claim on a system, or why none of them would tell anything."""
    home = claim.system == ANY or claim.machine == system
    if why := _silent(claim, home):
        return why
    if all(redo.suite in OF_GPUS for redo in claim.redo) and systems.load(system).device.kind != "cuda":
        return "NCCL needs GPUs"
    found, reasons = list[Selection](), list[str]()
    for redo in claim.redo:
        try:
            found.append(_selection(claim, redo, system, home))
        except UsageError as error:
            reasons.append(str(error).removesuffix("."))
    return found or "; ".join(dict.fromkeys(reasons))


def _selection(claim: Claim, redo: Redo, system: str, home: bool) -> Selection:
    if redo.suite == suites.MODEL and (why := suites.judged_by_model(system)):
        raise UsageError(why)
    if home:
        return suites.at_home(redo, ("reframe", "--system", system, *redo.words))
    return suites.elsewhere(redo, system, images=_is_of_images(claim))


def _is_of_images(claim: Claim) -> bool:
    models = [place_of(target).model for target in claim.targets] + [number.model for number in claim.numbers]
    return any(plain(model).startswith(U_NET) for model in models)


def _silent(claim: Claim, home: bool) -> str:
    """Say why no run could give a claim a verdict; "" if one could."""
    if not (claim.redo and claim.targets):
        return claim.status or "no suite redoes it"
    unread = dict.fromkeys(figure_of(claim, target) for target in claim.targets if not sources_of(claim, target))
    if len(unread) == len({figure_of(claim, target) for target in claim.targets}):
        return f"no measurement of {' and '.join(unread)} is read yet"
    if home or claim.anywhere:
        return ""
    if all(redo.suite in AT_HOME_ONLY for redo in claim.redo):
        return "scaling of another machine"
    return "" if any(says_who_is_ahead(claim, target) for target in claim.targets) else ANOTHER_MACHINES


def reasons_of(left_out: Iterable[LeftOut]) -> list[tuple[str, int]]:
    """Count what is left out by reason, the commonest first."""
    return Counter(one.why for one in left_out).most_common()


def as_text(planned: Plan) -> str:
    """Write a plan for a terminal."""
    from tabulate import tabulate

    jobs = plural(planned.repeat, "job")
    few = f"; {FEWEST_JOBS} jobs or more tell" if planned.repeat < FEWEST_JOBS else ""
    head = f"On {planned.system}: at most {planned.node_hours:.4g} node-hours, {jobs} of each test{few}."
    rows = [[shlex.join(words), f"{hours:.4g}"] for words, hours in _commands(planned)]
    parts = [head, tabulate(rows, ["Command", "Node-hours at most"], "plain", disable_numparse=True)]
    parts.append(f"For {', '.join(planned.places)}.")
    parts += [f"Left out: {plural(count, 'claim')}, {why}." for why, count in reasons_of(planned.left_out)]
    return "\n".join(parts)


def as_data(planned: Plan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    return {
        "system": planned.system,
        "repeat": planned.repeat,
        "node_hours": round(planned.node_hours, 3),
        "commands": [{"command": list(words), "node_hours": round(hours, 3)} for words, hours in _commands(planned)],
        "figures": list(planned.places),
        "left_out": [{"claim": one.place, "why": one.why} for one in planned.left_out],
    }


def _commands(planned: Plan) -> list[tuple[tuple[str, ...], float]]:
    return [(run.words(planned.system, planned.repeat), planned.repeat * run.node_hours) for run in planned.runs]


def carry_out(planned: Plan, timeout_s: float | None = None) -> list[str]:
    """Run the commands of a plan here, one after the other, and say so; returns what failed, a sentence each.

    Results go below results/. A signal that ends this process ends ReFrame and its jobs first. Raises UsageError where
    no job of the system can be submitted from here.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    if not timeout_s > 0:
        raise UsageError(f"--timeout is a positive number, but {timeout_s:g} was given.")
    suites.check(planned.system)
    check_folder("results", RESULTS)
    RESULTS.mkdir(exist_ok=True)
    complain(as_text(planned))
    processes.end_by_signals()
    ends, failures, done = time.monotonic() + timeout_s, list[str](), 0
    try:
        for (words, hours), run in zip(_commands(planned), planned.runs, strict=True):
            said, began = shlex.join(words), time.monotonic()
            _say(f"{done + 1} of {len(planned.runs)}, at most {hours:.4g} node-hours: {said}")
            why = _failure(run, planned, ends)
            minutes = (time.monotonic() - began) / 60
            failures += [f"{said} {why}"] if why else []
            done += 1
            _say(f"{done} of {len(planned.runs)} {'failed' if why else 'ended well'} after {minutes:.1f} minutes")
    except (SystemExit, KeyboardInterrupt):
        _say(f"stopped after {done} of {plural(len(planned.runs), 'command')}; par4d reproduce judges what ended.")
        raise
    return failures


def _failure(run: Selection, planned: Plan, ends: float) -> str:
    """Run a selection, and what its verdicts need besides; say why that failed, "" if it didn't."""
    if (left_s := ends - time.monotonic()) <= 0:
        return "was not begun, as --timeout is over."
    code = suites.run(run, planned.system, repeat=planned.repeat, folder=Path(), timeout_s=left_s)
    if code == 0 and run.suite == suites.MODEL:
        left_s = max(ends - time.monotonic(), 1.0)
        code = suites.validate(planned.system, folder=Path(), timeout_s=left_s)
    if code is None:
        return "didn't end within --timeout: what it had measured by then is judged."
    return f"failed with exit code {code}: its own words above say why." if code else ""


def _say(sentence: str) -> None:
    complain(f"reproduce: {sentence}")
