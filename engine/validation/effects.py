"""Predict what the papers say that a change brings: overlap, the choice of the grid, the mode of products."""

import logging
from collections.abc import Iterator
from dataclasses import replace

from engine.errors import UsageError
from engine.grid import INNER, STREAM
from engine.overlap.flags import Overlap
from engine.planning.grids import SearchSpace
from engine.planning.rank import Candidate, Workload, rank
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Simulated
from engine.tracing.forecast import fastest, traces
from engine.tracing.survey import Predictor
from engine.validation.document import Effect
from engine.validation.validate import published_workload, tried

log = logging.getLogger(__name__)

NONE, PAPERS = Overlap(), Overlap.parse("oar,ors,oag")
SIZES = {512: "gpt-5b", 1024: "gpt-10b", 2048: "gpt-20b", 4096: "gpt-40b", 8192: "gpt-80b"}
"""axonn-sc24 Fig. 7 has these models on so many GCDs of Frontier."""
SEQUENCES = 8192
"""Table III of axonn-sc24 has this batch size."""
SYSTEM = "frontier"
IN_NODE = 8
"""The baseline's tensor parallelism takes all GCDs of a node of Frontier."""
SLOW_MODE, OTHER_MODES = 0.06, 0.55
"""Products of GPT-320B reach these shares of the advertised peak in mode TN and in others (axonn-sc24 V-C)."""


def effects(machine: MachineModel) -> list[Effect]:
    """Predict all effects on Frontier. Raises UsageError if the baseline's grid doesn't fit."""
    return [*_grid_effects(machine), _overlap_effect(machine), *_mode_effects(machine)]


def _saved(before: float, after: float) -> float:
    """Return the saved time in percent."""
    return 100 * (1 - after / before)


def _best(
    workload: Workload, candidates: list[Candidate], machine: MachineModel
) -> tuple[Candidate, Predictor, Simulated]:
    return fastest(candidates, traces(workload, candidates, machine), machine)


def _grid_effects(machine: MachineModel) -> Iterator[Effect]:
    """Compare the best grid with x within a node and, across nodes, as few shards over z as fit and the rest data."""
    for devices, name in SIZES.items():
        log.info("%s on %d devices: the planner's grid against tensor parallelism in the node and HSDP", name, devices)
        workload = published_workload(name, SEQUENCES, NONE, machine)
        valid = SearchSpace(workload.training.model, SEQUENCES, exact=True).grids(devices, SEQUENCES)
        in_node = [grid for grid in valid if (grid[INNER], grid[STREAM]) == (IN_NODE, 1)]
        baselines = rank(workload, in_node, machine.bandwidths).candidates
        if not baselines:
            raise UsageError(f"No grid of {devices} devices with x={IN_NODE} holds {name}.")
        baseline, _, before = _best(workload, [min(baselines, key=lambda c: c.grid.shards)], machine)
        best, _, after = _best(workload, tried(workload, devices, machine), machine)
        yield Effect(
            name="the model's grid by tensor parallelism in the node and HSDP",
            setting=f"{name} on {devices} GCDs, {best.grid} by {baseline.grid}, no overlap",
            unit="%",
            predicted=_saved(before.time_s, after.time_s),
            published_low=13,
            published_high=45,
            source="axonn-sc24 Fig. 7, 5B to 80B",
        )


def _overlap_effect(machine: MachineModel) -> Effect:
    devices, name = 8192, "gpt-80b"
    log.info("%s on %d devices: overlap by none", name, devices)
    workload = published_workload(name, SEQUENCES, PAPERS, machine)
    best, _, after = _best(workload, tried(workload, devices, machine), machine)
    none = replace(workload, training=replace(workload.training, overlap=NONE))
    _, _, before = _best(none, [best], machine)
    return Effect(
        name="overlap of all-reduces, reduce-scatters and all-gathers by none",
        setting=f"{name} on {devices} GCDs, {best.grid}",
        unit="%",
        predicted=_saved(before.time_s, after.time_s),
        published_low=18.69,
        published_high=22,
        source="axonn-sc24 Fig. 5 and Fig. 7",
    )


def _mode_effects(machine: MachineModel) -> Iterator[Effect]:
    """Predict a batch's compute with all products in mode TN as slow as the paper's, and with none so slow."""
    devices, name = 32768, "gpt-320b"
    log.info("%s on %d devices: modes of products", name, devices)
    workload = published_workload(name, SEQUENCES, PAPERS, machine)
    best, traced, tuned = _best(workload, tried(workload, devices, machine), machine)
    untuned = traced.on(replace(machine, modes={"TN": SLOW_MODE / OTHER_MODES}))
    for what, step, published in (("as PyTorch multiplies", untuned, 30.1), ("tuned", tuned, 13.19)):
        yield Effect(
            name=f"compute of a batch, products {what}",
            setting=f"{name} on {devices} GCDs, {best.grid}",
            unit="s",
            predicted=step.compute_s,
            published_low=published,
            published_high=published,
            source="axonn-sc24 V-C; the number of GCDs is not given there",
        )
