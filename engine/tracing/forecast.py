"""Forecast of a plan's grids: each is traced and played on a machine, and its trace decides whether it fits."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf

from engine.errors import RunError
from engine.footprint.memory import Needs
from engine.grid import Grid
from engine.loading import cores
from engine.output import RENEWED
from engine.planning.rank import Ranking, best_first, ordered
from engine.planning.workload import Candidate, Workload
from engine.processes import start_fork_server, worker_processes
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Forecast, Simulated
from engine.tracing import LOADED
from engine.tracing.memory import needs_by_trace, trace_needs
from engine.tracing.predict import Traced, trace_network
from engine.tracing.stages import TracedStages, trace_stages
from engine.training_record import Training

log = logging.getLogger(__name__)

SURVEYED = 16
"""Grids that are simulated of each order: by the papers' equations, and by all that a run repeats."""
SURVEYED_WHOLE = 8
"""The same where blocks differ, so that a trace of a grid takes the whole network."""
PIPELINES_WHOLE = 2
"""Pipelines that are simulated then, of which a trace takes every stage."""
FINAL = 10
"""Grids that are traced as whole networks where that is asked for."""
SURELY_LESS = 0.999
"""Where a trace needs more than there is, another way may by the count need so much of what fits by its error."""
BAR = 20
WORTH_A_POOL = {True: 4, False: 16}
"""Numbers of whole networks (True), or of grids by few layers, that are worth the seconds that processes take to
start.
"""

Predictor = Traced | TracedStages
"""Traces from which the time of a step follows on any machine."""
SimulatedStep = tuple[Candidate, Predictor, Simulated]


def choose(workload: Workload, ranking: Ranking, devices_per_node: int, most: int | None = None) -> list[Candidate]:
    """List the first of both orders, each once, and of pipelines. most: of each, if not the usual number."""
    alike = workload.training.alike
    most = most or (SURVEYED if alike else SURVEYED_WHOLE)
    by_run = ordered(ranking.candidates, devices_per_node, as_run=True)
    both = (*ranking.candidates[:most], *by_run[:most])
    in_stages = ranking.pipelines[: most if alike else min(most, PIPELINES_WHOLE)]
    return [*{candidate.grid: candidate for candidate in both}.values(), *in_stages]


def trace_candidates(
    workload: Workload,
    candidates: Sequence[Candidate],
    machine: MachineModel,
    *,
    exact: bool = False,
    by_s: float = inf,
    each: type[map] | None = None,
) -> list[Predictor]:
    """Trace each candidate, with its micro-batch and the bucket that the machine wants.

    by_s: of pipelines that take longer for sure nothing can be predicted. each: a map over processes, if some run.
    """
    if not candidates:
        return []
    if each is None:
        with _map(workload, len(candidates), exact=exact) as each:
            return trace_candidates(workload, candidates, machine, exact=exact, by_s=by_s, each=each)
    links = machine.bandwidths
    jobs = [(one.training.with_bucket(one.grid, links.inter, links.devices_per_node), one.grid) for one in candidates]
    once = {(job[0], replace(job[1], pipe_outermost=False)): job for job in jobs}
    """Jobs without the order of stages, which doesn't change what a rank does."""
    what = "whole networks" if exact else "grids"
    one = partial(_trace, device_memory=workload.device_memory, exact=exact, machine=machine, by_s=by_s)
    known: dict[tuple[Training, Grid], Predictor] = {}
    for key, traced in zip(once, each(one, *zip(*once.values(), strict=True)), strict=True):
        known[key] = traced
        done = BAR * len(known) // len(once)
        bar = "#" * done + "." * (BAR - done)
        log.info("%s traced %d of %d %s", bar, len(known), len(once), what, extra=RENEWED)
    found = []
    for training, grid in jobs:
        traced = known[training, replace(grid, pipe_outermost=False)]
        found.append(traced.at(grid) if isinstance(traced, TracedStages) else traced)
    return found


def forecast(
    workload: Workload,
    candidates: Sequence[Candidate],
    machine: MachineModel,
    *,
    exact: bool = False,
    shown: int | None = None,
) -> list[Candidate]:
    """Return the candidates that fit with their forecasts, the first with a timeline, in the order of best_first.

    Each is trained in the way that is estimated to take least of those that fit; those of the first FINAL without
    stages that fit only with all blocks recomputed recompute as few as that takes. exact: the first FINAL are forecast
    once more, by the whole network's trace, and come before the others. shown: pipelines that come behind as many grids
    may be left out.
    """
    with _map(workload, len(candidates), exact=exact) as each:
        trace = partial(trace_candidates, workload, machine=machine, each=each)
        alone = _trace_fitting(workload, _chosen(workload, candidates, machine), machine, trace)
        steps = [(candidate, traced, traced.on(machine)) for candidate, traced in alone]
        times_s = sorted(step.time_s for *_, step in steps)
        by_s = times_s[shown - 1] if shown is not None and len(times_s) >= shown else inf
        steps += _staged_fitting(workload, [one for one in candidates if one.grid.stages > 1], machine, each, by_s)
        if workload.recomputes_least:
            steps = _recomputing_fewest(workload, steps, machine, trace)
        found = _ordered(steps, machine)
        if not exact:
            return found
        final, rest = found[:FINAL], found[FINAL:]
        whole = trace(final, exact=True)
    return _ordered([(one, it, it.on(machine)) for one, it in zip(final, whole, strict=True)], machine) + rest


def find_fastest(
    candidates: Sequence[Candidate], traced: Sequence[Predictor], machine: MachineModel
) -> tuple[Candidate, Predictor, Simulated]:
    """Find the candidate whose step takes the least time on the machine, its trace and that step."""
    steps = [one.on(machine) for one in traced]
    return min(zip(candidates, traced, steps, strict=True), key=lambda found: found[2].time_s)


def _chosen(workload: Workload, candidates: Sequence[Candidate], machine: MachineModel) -> list[Candidate]:
    """Choose how to train on the grids without stages, where that is left to the plan."""
    alone = [one for one in candidates if one.grid.stages == 1]
    if not (workload.modes or workload.recomputes_least):
        return alone
    chosen = [(one, workload.choose(one.grid, machine.links)) for one in alone]
    return [one if other is None else replace(other, equations=one.equations) for one, other in chosen]


def _recomputing_fewest(
    workload: Workload,
    steps: Sequence[SimulatedStep],
    machine: MachineModel,
    trace: Callable[[Sequence[Candidate]], Sequence[Predictor]],
) -> list[SimulatedStep]:
    """Simulate those of the fastest steps without stages that recompute all blocks with as few as fit instead, and keep
    what is faster.
    """
    found = sorted(steps, key=lambda step: step[2].time_s)
    fewer = dict[int, Candidate]()
    for at, (candidate, *_) in enumerate(found[:FINAL]):
        if candidate.grid.stages == 1 and candidate.training.recomputed_blocks:
            limit = _by_the_error(workload, workload.count(candidate.grid, candidate.training), candidate.needs)
            if (other := workload.recompute_fewest(candidate, machine.links, limit)) is not None:
                fewer[at] = replace(other, equations=candidate.equations)
    for at, candidate, traced in zip(fewer, fewer.values(), trace(list(fewer.values())), strict=True):
        assert isinstance(traced, Traced)
        needs = needs_by_trace(candidate.training, candidate.grid, traced.peak_bytes, workload.device)
        step = traced.on(machine)
        if needs.total <= workload.usable and step.time_s < found[at][2].time_s:
            found[at] = replace(candidate, needs=needs), traced, step
    return found


def _trace_fitting(
    workload: Workload,
    candidates: Sequence[Candidate],
    machine: MachineModel,
    trace: Callable[[Sequence[Candidate]], Sequence[Predictor]],
) -> list[tuple[Candidate, Predictor]]:
    """Trace the candidates that fit by their traces, where need be trained otherwise."""
    found: list[tuple[Candidate, Predictor]] = []
    left = list(candidates)
    while left:
        others = list[Candidate | None]()
        for candidate, traced in zip(left, trace(left), strict=True):
            assert isinstance(traced, Traced)
            needs = needs_by_trace(candidate.training, candidate.grid, traced.peak_bytes, workload.device)
            if needs.total <= workload.usable:
                found.append((replace(candidate, needs=needs), traced))
            else:
                limit = _by_the_error(workload, candidate.needs, needs)
                other = workload.choose(candidate.grid, machine.links, limit)
                others.append(other and replace(other, equations=candidate.equations))
        left = [candidate for candidate in others if candidate is not None]
    return found


def _by_the_error(workload: Workload, counted: Needs, traced: Needs) -> float:
    """Return the bytes that another way may need by the count, if that errs as it does of one that was traced."""
    return SURELY_LESS * counted.total * workload.usable / traced.total


def _staged_fitting(
    workload: Workload, candidates: Sequence[Candidate], machine: MachineModel, each: type[map], by_s: float
) -> list[SimulatedStep]:
    """Simulate the pipelines, but for those that take longer for sure, and keep those that fit by their traces, where
    need be trained otherwise.
    """
    found, left = list[SimulatedStep](), list(candidates)
    while left:
        steps = []
        for candidate, traced in zip(
            left, trace_candidates(workload, left, machine, by_s=by_s, each=each), strict=True
        ):
            assert isinstance(traced, TracedStages)
            if (step := traced.on(machine, by_s=by_s)).time_s < inf:
                steps.append((candidate, traced, step))
        trainings, grids = [traced.training_of(step) for _, traced, step in steps], [one.grid for one, *_ in steps]
        needs = each(trace_needs, trainings, grids, [workload.device] * len(steps))
        others = list[Candidate | None]()
        for needed, (candidate, traced, step) in zip(needs, steps, strict=True):
            if needed.total <= workload.usable:
                found.append((replace(candidate, needs=needed), traced, step))
            else:
                limit = _by_the_error(workload, candidate.needs, needed)
                other = workload.choose_staged(candidate.grid, candidate.micro, machine.links, limit)
                others.append(other and replace(other, equations=candidate.equations))
        left = [candidate for candidate in others if candidate is not None]
    return found


def _ordered(steps: Sequence[SimulatedStep], machine: MachineModel) -> list[Candidate]:
    """Put the candidates in the order of best_first, with their forecasts."""
    by_equations = ordered([one for one, *_ in steps if one.grid.stages == 1], machine.bandwidths.devices_per_node)
    place = {candidate.grid: number for number, candidate in enumerate(by_equations)}
    order = best_first([step.time_s for *_, step in steps], [place.get(candidate.grid) for candidate, *_ in steps])
    found = []
    for at in order:
        candidate, traced, step = steps[at]
        first = at == order[0]
        step = traced.on(machine, timeline=True) if first else step
        drawn = traced.drawn if first else None
        forecast = Forecast(step, traced.whole, traced.cached_blocks, drawn)
        found.append(replace(candidate, forecast=forecast))
    return found


def _trace(
    training: Training, grid: Grid, *, device_memory: float | None, exact: bool, machine: MachineModel, by_s: float
) -> Predictor:
    if grid.stages > 1:
        return trace_stages(training, grid, device_memory, machine, by_s)
    return trace_network(training, grid, device_memory=device_memory, exact=exact)


@contextmanager
def _map(workload: Workload, traces: int, *, exact: bool) -> Iterator[type[map]]:
    """Give a map over processes, or in this one where so many traces aren't worth their start."""
    workers = min(len(cores()), 8)
    whole = exact or not workload.training.alike
    if traces < WORTH_A_POOL[whole] or workers == 1:
        yield map
        return
    start_fork_server(*LOADED)
    try:
        with worker_processes(workers) as executor:
            yield executor.map  # type: ignore[misc]
    except BrokenProcessPool:
        raise RunError("A process that traced was ended from outside, perhaps for want of memory: try again.") from None
