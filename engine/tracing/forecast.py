"""How long a step takes on the grids of a plan: their traces, played on a machine."""

from collections.abc import Sequence
from dataclasses import replace

from engine.planning.rank import Candidate, Ranking, Workload, ordered
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Forecast, Simulated
from engine.tracing.predict import Traced
from engine.tracing.survey import survey
from engine.training_record import Training

SURVEYED = 24
"""Grids that are simulated of each order: the papers', and that of all that a run repeats."""
FINAL = 10
"""Of these, how many are traced as a whole where that is asked for."""


def chosen(ranking: Ranking, devices_per_node: int, most: int = SURVEYED) -> list[Candidate]:
    """The first of the papers' order and of that of all that a run repeats, each once."""
    by_run = ordered(ranking.candidates, devices_per_node, as_run=True)
    both = (*ranking.candidates[:most], *by_run[:most])
    return list({candidate.grid: candidate for candidate in both}.values())


def training_of(training: Training, candidate: Candidate, machine: MachineModel) -> Training:
    """What the candidate stands for; it need not be possible here."""
    links, batch = machine.bandwidths, replace(training.batch, micro=candidate.micro)
    return replace(training, batch=batch).with_bucket(candidate.grid, links.inter, links.devices_per_node)


def traces(
    workload: Workload, candidates: Sequence[Candidate], machine: MachineModel, *, exact: bool = False
) -> list[Traced]:
    """What decides the time of each."""
    trainings = [training_of(workload.training, candidate, machine) for candidate in candidates]
    grids = [candidate.grid for candidate in candidates]
    return survey(trainings, grids, device_memory=workload.device_memory, exact=exact)


def forecast(
    workload: Workload, candidates: Sequence[Candidate], machine: MachineModel, *, exact: bool = False
) -> list[Candidate]:
    """The same with their times, the fastest first, which has a timeline; exact: the first FINAL once more, with the
    whole network's trace, before the others.
    """
    found = _played(candidates, traces(workload, candidates, machine), machine)
    if not exact:
        return found
    final, rest = found[:FINAL], found[FINAL:]
    return _played(final, traces(workload, final, machine, exact=True), machine) + rest


def fastest(
    candidates: Sequence[Candidate], of: Sequence[Traced], machine: MachineModel
) -> tuple[Candidate, Traced, Simulated]:
    """The grid whose step takes the least time on the machine, its trace and that step."""
    steps = [traced.on(machine) for traced in of]
    return min(zip(candidates, of, steps, strict=True), key=lambda found: found[2].time_s)


def _played(candidates: Sequence[Candidate], of: Sequence[Traced], machine: MachineModel) -> list[Candidate]:
    found = [
        replace(candidate, forecast=Forecast(traced.on(machine), traced.whole is not None, traced.cached_blocks))
        for candidate, traced in zip(candidates, of, strict=True)
    ]
    order = sorted(range(len(found)), key=lambda at: found[at].forecast.step.time_s)  # type: ignore[union-attr]
    best, first = order[0], of[order[0]]
    exact = first.whole is not None
    drawn = Forecast(first.on(machine, timeline=True), exact, first.cached_blocks, first.drawn)
    found[best] = replace(found[best], forecast=drawn)
    return [found[at] for at in order]
