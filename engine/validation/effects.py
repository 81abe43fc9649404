"""Predict what the papers say that a change brings, of what parts a batch's time is, and how long a batch takes on a
grid that is named, on machines that are fitted to nothing (rows/effects.yaml).

Compute and communication are judged each alone here, as in the times of batches their errors may cancel.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import systems
from engine import published, yaml_text
from engine.errors import UsageError
from engine.grid import TENSOR, Axis, Grid
from engine.overlap.flags import Overlap
from engine.planning.grids import SearchSpace
from engine.planning.rank import rank
from engine.planning.workload import Candidate, Workload
from engine.result.schema.step import GridText
from engine.schema import Record
from engine.simulator.events import MatrixProduct
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Simulated
from engine.tracing.forecast import Predictor, find_fastest, trace_candidates
from engine.tracing.predict import Traced
from engine.training_record import TrainingOptions
from engine.validation.document import NOT_KNOWN, Effect
from engine.validation.measured import FOLDER
from engine.validation.validate import AS_PUBLISHED, choose_grids, published_workload

log = logging.getLogger(__name__)
IN_NODE = 8
"""The baseline's tensor parallelism takes all GCDs of a node of Frontier."""
Played = tuple[Candidate, Predictor, Simulated]


class Row(Record):
    """Effect to be predicted."""

    name: str
    source: str
    published: dict[str, str]
    """Fields of its published numbers; of several the least and the greatest count."""
    system: str
    jobs: dict[str, int]
    """Number of devices by model; each is an effect of its own."""
    sequences: int
    training: TrainingOptions = AS_PUBLISHED
    """Options of its training."""
    predicts: Literal[
        "time",
        "saved by grid",
        "saved by overlap",
        "compute",
        "compute of slow products",
        "rate of products",
        "exposed communication",
    ]
    overlap: str
    before: str = "none"
    """Overlap over which time is saved."""
    grid: GridText | None = None
    """Grid of the job, where the paper names one; else the fastest."""
    micro_batch: int | None = None
    """Sequences that a rank of that grid takes at once; None: all of its share."""
    schedule: str | None = None
    """Schedule of its stages."""
    hides: tuple[Axis, ...] = ()
    """Axes along which the overlap hides; where less is exposed there than was saved, that is the reason."""
    above: str = NOT_KNOWN
    """Name of the reason why more is predicted than was published."""
    below: str = NOT_KNOWN

    def published_range(self) -> tuple[float, float]:
        """Return the least and the greatest published number."""
        numbers = published.select(**self.published)
        ends = [end for one in numbers for end in (one.value, one.highest) if end is not None]
        return min(ends), max(ends)

    def reason(self, effect: Effect, reasons: Mapping[str, str], before: Simulated | None) -> str:
        """Give the reason why the effect is missed, on the side on which it is."""
        if not effect.off:
            return ""
        if effect.off < 0 and before and self.hides:
            share = 100 * sum(before.exposed_s.get(axis, 0.0) for axis in self.hides) / before.time_s
            if share < effect.published_low:
                return reasons["little left"].format(share=share)
        return reasons.get(self.above if effect.off > 0 else self.below, NOT_KNOWN)


class Rows(Record):
    """Effects, and the reasons that they name."""

    reasons: dict[str, str]
    effects: tuple[Row, ...]


class Steps:
    """Fastest steps of the papers' jobs on a machine, each traced once."""

    def __init__(self, machine: MachineModel) -> None:
        self.machine = machine
        self._known: dict[tuple[object, ...], Played] = {}

    def best(self, row: Row, model: str, overlap: str, only: Candidate | None = None) -> Played:
        """Play a job on one grid, or on all that a planner would try; return the fastest, its trace and its step."""
        devices = row.jobs[model]
        grid = str(only.grid) if only else row.grid
        key = model, devices, row.sequences, overlap, grid, row.training, row.micro_batch, row.schedule
        if key not in self._known:
            log.info("%s on %d devices of %s, overlap %s", model, devices, row.system, overlap)
            workload = self._workload(row, model, overlap)
            candidates = [only] if only else self._candidates(row, workload, devices)
            self._known[key] = find_fastest(
                candidates, trace_candidates(workload, candidates, self.machine), self.machine
            )
        return self._known[key]

    def _workload(self, row: Row, model: str, overlap: str) -> Workload:
        hidden = Overlap.parse(overlap)
        return published_workload(model, row.sequences, hidden, self.machine, row.training, row.schedule)

    def _candidates(self, row: Row, workload: Workload, devices: int) -> list[Candidate]:
        if not row.grid:
            return choose_grids(workload, devices, self.machine)
        grid = Grid.parse(row.grid)
        micro = row.micro_batch or row.sequences // grid.batch_split
        return [workload.at(grid, micro)]

    def in_node(self, row: Row, model: str) -> Candidate:
        """Choose tensor parallelism in the node and HSDP: as few shards over z as fit, and the rest data."""
        devices = row.jobs[model]
        workload = self._workload(row, model, row.overlap)
        valid = SearchSpace(workload.training.model, row.sequences, exact=True).grids(devices, row.sequences)
        grids = [grid for grid in valid if grid[TENSOR] == grid.plane == IN_NODE]
        if not (found := rank(workload, grids, self.machine.bandwidths).candidates):
            raise UsageError(f"No grid of {devices} devices with x={IN_NODE} holds {model}.")
        return min(found, key=lambda candidate: candidate.grid.shards)


def effects(machines: Mapping[str, MachineModel]) -> list[Effect]:
    """Predict all effects. machines: those of the papers that are fitted to something; others are as their files have
    them. Raises UsageError if a grid doesn't fit.
    """
    rows = Rows.model_validate(yaml_text.parse((FOLDER / "effects.yaml").read_text()))
    steps = {name: Steps(machine) for name, machine in machines.items()}
    for row in rows.effects:
        if row.system not in steps:
            steps[row.system] = Steps(MachineModel.of(systems.load(row.system), row.training.precision, None))
    return [_effect(row, model, steps[row.system], rows.reasons) for row in rows.effects for model in row.jobs]


def _effect(row: Row, model: str, steps: Steps, reasons: Mapping[str, str]) -> Effect:
    candidate, traced, step = steps.best(row, model, row.overlap)
    before = None
    setting = f"{model} on {row.jobs[model]} devices of {row.system}, {row.sequences} sequences, {candidate.grid}"
    if row.predicts == "saved by grid":
        base, _, before = steps.best(row, model, row.overlap, steps.in_node(row, model))
        setting += f" by {base.grid}, no overlap"
    elif row.predicts == "saved by overlap":
        before = steps.best(row, model, row.before, candidate)[2]
    low, high = row.published_range()
    effect = Effect(
        name=row.name,
        setting=setting,
        unit="%" if before or row.predicts == "rate of products" else "s",
        predicted=_predicted(row, traced, step, before, steps.machine),
        published_low=low,
        published_high=high,
        source=row.source,
    )
    return effect.model_copy(update={"reason": row.reason(effect, reasons, before)})


def _predicted(row: Row, traced: Predictor, step: Simulated, before: Simulated | None, machine: MachineModel) -> float:
    """Predict the saved time or a rate in percent, else seconds."""
    if before:
        return 100 * (1 - step.time_s / before.time_s)
    if row.predicts == "rate of products":
        return 100 * _products_rate(traced, machine) / machine.peak_flops
    if row.predicts == "compute of slow products":
        slow, others = published.select(paper="axonn-sc24", metric="of_advertised")
        return traced.on(replace(machine, modes={"TN": slow.value / others.value})).compute_s
    if row.predicts == "time":
        return step.time_s
    return step.compute_s if row.predicts == "compute" else step.communication_s


def _products_rate(traced: Predictor, machine: MachineModel) -> float:
    """Return the flop/s of all products of a trace while nothing else runs."""
    assert isinstance(traced, Traced)
    products = [event for event in traced.shown if isinstance(event, MatrixProduct)]
    return sum(one.flops for one in products) / sum(machine.compute_s(one) for one in products)
