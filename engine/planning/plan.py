"""Plan a training on so many devices of a system: the best grids, as a document. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import systems
from engine.footprint.fit import check_host_memory, offloaded_bytes
from engine.planning.document import GridPlan, origin, row
from engine.planning.fewest import refusal
from engine.planning.grids import SearchSpace
from engine.planning.rank import Candidate, Ranking, Workload, pipelines, rank
from engine.simulator.bandwidth import Bandwidths, agnostic, bandwidths, papers_links
from engine.simulator.machine import MachineModel
from engine.training_record import Training
from systems import System

TOKENS_A_PARAMETER = 20
"""A training on so many tokens gets the most of its flops (Hoffmann et al. 2022)."""
Forecasting = Callable[[Workload, Ranking, MachineModel, int], Sequence[Candidate]]
"""Simulation of the best grids of a ranking: those that fit with the times of their steps, the fastest first, as far as
so many are shown.
"""


def make_plan(
    training: Training,
    space: SearchSpace,
    devices: int,
    system: System,
    *,
    shown: int,
    forecast: Forecasting | None,
    device_memory: float | None = None,
    token_budget: float | None = None,
    placement_aware: bool = True,
) -> tuple[GridPlan, Bandwidths]:
    """Plan so many of the best grids; return the plan and the system's bandwidths. Raises UsageError if none fits.

    training: its batch is the one that the devices can share, of those near the one of the search space. forecast:
    without it grids are ordered by the papers' equations, and none has several stages.
    """
    model, sequences = training.model, training.batch.sequences
    measured = systems.measured(system.name)
    memory = device_memory or (system.device.memory_bytes.value if system.device.memory_bytes else None)
    machine = MachineModel.of(system, training.precision, measured, devices) if forecast else None
    links = machine.bandwidths if machine else bandwidths(system, measured)
    ranks, host = min(devices, links.devices_per_node), system.node.memory_bytes
    workload = Workload(training, memory, system.device.kind, host_memory=host.value / ranks if host else None)
    grids = space.grids(devices, sequences)
    taken = links if placement_aware else agnostic(links.inter)
    ranking = rank(workload, grids, taken, links_as_run=machine.links if machine else None, maybe=machine is not None)
    candidates: Sequence[Candidate] = ranking.candidates
    in_stages = space.pipelines(devices, sequences) if machine else []
    if not in_stages and space.stages not in (None, 1):
        raise space.no_stages(devices)
    if machine:
        compute_s = training.flops / (devices * machine.empirical_peak)
        ranked = pipelines(workload, in_stages, machine.links, compute_s, machine.ranks_per_core)
        ranking = replace(ranking, pipelines=ranked)
    if not (ranking.candidates or ranking.pipelines):
        if host:
            least = min(grids or in_stages, key=partial(offloaded_bytes, training))
            check_host_memory(training, least, host.value, ranks)
        raise refusal(workload, space, grids or in_stages, links.devices_per_node)
    if forecast and machine:
        candidates = forecast(workload, ranking, machine, shown)
    samples = model.task.data.samples
    if token_budget is None and samples == "sequences":
        token_budget = float(TOKENS_A_PARAMETER * model.parameters)
    return GridPlan(
        system=system.name,
        machine=origin(system, measured, simulated=machine is not None) if machine or measured else None,
        devices_per_node=links.devices_per_node,
        device_memory_bytes=memory,
        model=model.name,
        parameters=model.parameters,
        devices=devices,
        samples=samples,
        asked_sequences=space.sequences,
        sequences=sequences,
        tokens=sequences * model.sequence,
        training=training.asked(),
        overlap=str(training.overlap),
        token_budget=token_budget,
        placement_aware=placement_aware,
        ordered_by="simulated" if machine else "equations",
        valid=ranking.valid,
        fit=len(ranking.candidates),
        rows=tuple(
            row(
                place,
                candidate,
                workload,
                {axis: link.bytes_per_s for axis, link in papers_links(taken)(candidate.grid).items()},
                token_budget=token_budget,
                peak_flops=machine.peak_flops if machine else None,
            )
            for place, candidate in enumerate(candidates[:shown], 1)
        ),
    ), links
