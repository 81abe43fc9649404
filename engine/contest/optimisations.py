"""Contest of optimisations, each added to those before it: what does a step gain by it (axonn-sc24 VII-A, Fig. 7)? No
torch before it is carried out.

The baseline is tensor parallelism within a node and hybrid sharded data parallelism across nodes, nothing tuned and
nothing overlapped. Then come the grid of the performance model, tuned matrix products on it, and overlap. Where a
device can't hold the models of all sides at once, each is built for its turn, with a warm-up, and dropped after it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from engine.contest.grids import model_of
from engine.contest.overlap import drop_incomparable
from engine.contest.rounds import CheckedContest, Rounds, Side, take_rounds
from engine.footprint.memory import Footprint, usable
from engine.grid import Grid
from engine.overlap.flags import Overlap, flags, why_useless
from engine.pipeline.registry import DEFAULT
from engine.planning.rank import grid_within_nodes
from engine.planning.workload import Workload
from engine.training.checks import CheckedRun, ContestSetup, RunKind, check_cache, checked
from engine.training.config import RunConfig, TrainConfig
from engine.training.equality import TOLERANCES, Values, check_steps
from engine.training_record import Training

if TYPE_CHECKING:
    from engine.comm.funnel import Comm
    from engine.result.schema import Iteration
    from engine.result.schema.contest import Contest
    from engine.training.trainer import Trainer

log = logging.getLogger(__name__)

SIDES = ("baseline", "grid", "tuning", "overlap")
"""Names of the sides, in the order in which optimisations are added."""
OF_THE_PAPER = Overlap(oar=True, ors=True, oag=True)
EQUAL_STEPS = 4
"""Steps of a training of which losses are compared: later ones are as far apart as rounding has taken them."""


@dataclass(frozen=True, slots=True)
class CheckedOptimisations(CheckedContest):
    """Contest of these runs, the baseline first."""

    kind: ClassVar[RunKind] = "optimisations"
    runs: tuple[CheckedRun, ...] = ()
    """Sides of the contest, in the order of SIDES, each with its settings."""
    apart: bool = False
    """Whether each model is built for its turn."""

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Overlaps that the run takes."""
        return tuple(dict.fromkeys(run.training.overlap for run in self.runs))

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Grids that the run takes, its own first."""
        return tuple(dict.fromkeys(run.grid for run in self.runs))

    @property
    def trainings(self) -> tuple[tuple[Training, Grid], ...]:
        """List the trainings of all sides."""
        return tuple((run.training, run.grid) for run in self.runs)

    def as_options(self) -> dict[str, Any]:
        """Return every option as it came out (CheckedRun.as_options)."""
        last = self.runs[-1]
        return CheckedContest.as_options(self) | {
            "optimisations": [*SIDES],
            "overlap": str(last.training.overlap),
            "tune_matmul": last.config.tune_matmul,
            "apart": self.apart,
        }

    def compare(self, setup: ContestSetup) -> "Contest":
        """Measure every side. Collective. Raises Diverged, or RunError where sides don't train the same."""
        return compare_optimisations(self, setup)


def check_optimisations(
    config: RunConfig, base: Grid | None, full: Overlap, ranks: int, rounds: Rounds, *, apart: bool | None = None
) -> tuple[CheckedOptimisations, list[str]]:
    """Check the contest; also return a sentence for each flag that is left out. Raises UsageError.

    config: whose grid is the performance model's. base: the baseline's grid; None for x over the devices of a node and
    the fewest shards across nodes that fit. full: the overlap. apart: whether each model is built for its turn; None
    for where memory demands it.
    """
    plain = TrainConfig.of(config, breakdown=True, overlap=Overlap().at(full), tune_matmul=False)
    on_grid = checked(plain, ranks)
    check_cache(full, on_grid.training.model)
    recomputes = on_grid.training.checkpoint_activations
    _, overlap = drop_incomparable([full], on_grid.grid, checkpointed=recomputes)
    reasons = [why_useless(flag, on_grid.grid, checkpointed=recomputes) for flag in flags(full)]
    if base is None:
        workload = Workload(on_grid.training, config.device_memory, config.device_kind)
        base = grid_within_nodes(workload, ranks, config.devices_per_node)
    tuned = replace(plain, tune_matmul=config.tune_matmul or True)
    baseline = checked(replace(plain, grid=base, pipe=None, pipeline=DEFAULT), ranks)
    runs = (baseline, on_grid, checked(tuned, ranks), checked(replace(tuned, overlap=overlap), ranks))
    if apart is None:
        apart = not _fit_together(runs)
    contest = CheckedOptimisations.of(baseline, rounds, len(runs), runs=runs, apart=apart)
    if apart:
        warmups = len(runs) * rounds.rounds * rounds.warmup
        contest = replace(contest, config=replace(contest.config, iterations=contest.config.iterations + warmups))
    return contest, [reason for reason in reasons if reason is not None]


def _fit_together(runs: Sequence[CheckedRun]) -> bool:
    """Say whether a step of each fits into a device's memory beside the models of the others."""
    config = runs[0].config
    needs = {model_of(run): Footprint(run.training, config.device_kind).on(run.grid) for run in runs}
    states = sum(one.state for one in needs.values())
    return states + max(one.total - one.state for one in needs.values()) <= usable(config.device_memory)


class _Models:
    """Trainers of the sides; those that train the same model share one. apart: only one is there at a time."""

    def __init__(self, setup: ContestSetup, first: CheckedRun, *, apart: bool) -> None:
        self._setup, self._apart = setup, apart
        self._trainers = {model_of(first): setup.trainer}
        self._comms = {first.grid: setup.trainer.comm}

    def comm(self, grid: Grid) -> "Comm":
        """Return the ranks connected as a grid. Collective."""
        if grid not in self._comms:
            self._comms[grid] = self._setup.connect(grid)
        return self._comms[grid]

    def take(self, run: CheckedRun) -> "tuple[Trainer, bool]":
        """Return the trainer of a run, and whether it was built for that. Collective."""
        model = model_of(run)
        if model in self._trainers:
            return self._trainers[model], False
        if self._apart:
            for trainer in self._trainers.values():
                trainer.drop()
            self._trainers.clear()
        tune_matmul = run.config.tune_matmul
        self._trainers[model] = self._setup.make(run.training, self.comm(run.grid), tune_matmul=tune_matmul)
        return self._trainers[model], True


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """Run with settings of its own."""

    run: CheckedRun
    models: _Models

    def begin(self) -> bool:
        self.trainer, built = self.models.take(self.run)
        self.trainer.switch(self.run.training.overlap)
        return built

    def prepare(self) -> None:
        self.trainer.comm.barrier()


def compare_optimisations(contest: CheckedOptimisations, setup: ContestSetup) -> "Contest":
    """Measure every side. Collective. Raises Diverged, or RunError where sides don't train the same."""
    from engine.result.schema.contest import Contest, OptimisationSide
    from engine.training.gathered import breakdown  # loads torch

    models = _Models(setup, contest.runs[0], apart=contest.apart)
    recorder = setup.trainer.recorder
    sides = [
        _Side(name, setup.trainer, recorder.new_recording(), run=run, models=models)
        for name, run in zip(SIDES, contest.runs, strict=True)
    ]

    def check() -> None:
        check_equal_sides(sides, contest)

    take_rounds(sides, contest.rounds, setup, check)
    check()
    found = []
    for former, side in zip([sides[0], *sides], sides, strict=False):
        run = side.run
        measured = OptimisationSide(
            **side.times(sides[0]),
            over_former=side.over(former),
            grid=str(run.grid),
            micro_batch=run.training.batch.at_once(run.grid),
            tuned=bool(run.config.tune_matmul),
            overlap=str(run.training.overlap),
            breakdown=breakdown(models.comm(run.grid), side.recording, setup.link_bytes_per_s),
        )
        log.info("%-10s %8.3f s a step  %s", side.name, side.time_s, measured.over_former or "")
        found.append(measured)
    return Contest(base=sides[0].name, sides=tuple(found))


def check_equal_sides(sides: Sequence[Side], contest: CheckedOptimisations) -> None:
    """Raise RunError unless the sides had the baseline's losses in the first steps that both have taken by now."""
    base, *others = sides
    tolerance = TOLERANCES[contest.config.precision]
    for side in others:
        both = sorted(step for step in base.by_step.keys() & side.by_step.keys() if step < EQUAL_STEPS)
        pairs = {step: (_values(base.by_step[step]), _values(side.by_step[step])) for step in both}
        known = {step: (one, other) for step, (one, other) in pairs.items() if one and other}
        check_steps(f"the side {base.name}", f"the side {side.name}", known, tolerance)


def _values(iteration: "Iteration") -> Values | None:
    """Return loss and gradient norm; None of a step that was skipped."""
    return None if iteration.grad_norm is None else (iteration.loss, iteration.grad_norm)
