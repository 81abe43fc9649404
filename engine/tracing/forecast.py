"""The grids of a plan are traced and played on a machine, to say how long a step takes on each."""

from collections.abc import Sequence
from dataclasses import replace

from engine.footprint.memory import Needs
from engine.pipeline.registry import ScheduleChoice
from engine.planning.rank import Candidate, Ranking, Workload, best_first, ordered
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Forecast, Simulated
from engine.tracing.stages import TracedStages
from engine.tracing.survey import Predictor, survey

SURVEYED = 24
"""So many grids are simulated of each order: by the papers' equations, and by all that a run repeats."""
SURVEYED_WHOLE = 8
"""So many are where blocks differ, so that a trace of a grid takes the whole network."""
PIPELINES_WHOLE = 2
"""So many pipelines are then, of which a trace takes every stage."""
FINAL = 10
"""So many of these are traced as a whole where that is asked for."""


def chosen(workload: Workload, ranking: Ranking, devices_per_node: int, most: int | None = None) -> list[Candidate]:
    """List the first of both orders, each once, and of pipelines. most: so many of each, if not the usual number."""
    alike = workload.training.model.network().alike
    most = most or (SURVEYED if alike else SURVEYED_WHOLE)
    by_run = ordered(ranking.candidates, devices_per_node, as_run=True)
    both = (*ranking.candidates[:most], *by_run[:most])
    in_stages = ranking.pipelines[: most if alike else min(most, PIPELINES_WHOLE)]
    return [*{candidate.grid: candidate for candidate in both}.values(), *in_stages]


def traces(
    workload: Workload, candidates: Sequence[Candidate], machine: MachineModel, *, exact: bool = False
) -> list[Predictor]:
    """Trace each candidate, with its micro-batch and the bucket that the machine wants."""
    links, grids = machine.bandwidths, [candidate.grid for candidate in candidates]
    batches = [replace(workload.training.batch, micro=candidate.micro) for candidate in candidates]
    trainings = [
        replace(workload.training, batch=batch).with_bucket(grid, links.inter, links.devices_per_node)
        for batch, grid in zip(batches, grids, strict=True)
    ]
    return survey(trainings, grids, device_memory=workload.device_memory, exact=exact)


def forecast(
    workload: Workload, candidates: Sequence[Candidate], machine: MachineModel, *, exact: bool = False
) -> list[Candidate]:
    """Give the candidates with their forecasts, the first of which has a timeline, in the order of best_first. exact:
    the first FINAL are forecast once more, by the whole network's trace, and come before the others.
    """
    found = _played(candidates, traces(workload, candidates, machine), machine)
    if not exact:
        return found
    final, rest = found[:FINAL], found[FINAL:]
    return _played(final, traces(workload, final, machine, exact=True), machine) + rest


def fastest(
    candidates: Sequence[Candidate], of: Sequence[Predictor], machine: MachineModel
) -> tuple[Candidate, Predictor, Simulated]:
    """Find the candidate whose step takes the least time on the machine, its trace and that step."""
    steps = [traced.on(machine) for traced in of]
    return min(zip(candidates, of, steps, strict=True), key=lambda found: found[2].time_s)


def _played(candidates: Sequence[Candidate], of: Sequence[Predictor], machine: MachineModel) -> list[Candidate]:
    steps = [traced.on(machine) for traced in of]
    by_equations = ordered([one for one in candidates if one.grid.stages == 1], machine.bandwidths.devices_per_node)
    place = {candidate.grid: number for number, candidate in enumerate(by_equations)}
    order = best_first([step.time_s for step in steps], [place.get(candidate.grid) for candidate in candidates])
    best = order[0]
    steps[best] = of[best].on(machine, timeline=True)

    def of_candidate(at: int) -> Forecast:
        drawn = of[at].drawn if at == best else None
        return Forecast(steps[at], of[at].whole is not None, of[at].cached_blocks, drawn)

    def needs(at: int) -> Needs:
        one, schedule = of[at], steps[at].schedule
        if not isinstance(one, TracedStages) or schedule is None:
            return candidates[at].needs
        return one.needs[ScheduleChoice.parse(schedule)]

    return [replace(candidates[at], needs=needs(at), forecast=of_candidate(at)) for at in order]
