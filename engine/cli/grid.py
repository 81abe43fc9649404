"""`--grid auto` takes what a short plan finds the fastest, where the machine can be simulated. No torch before that."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.loading import cores, loading
from engine.overlap.flags import Overlap
from engine.pipeline.registry import AUTO, ScheduleChoice
from engine.planning.grids import SearchSpace
from engine.processes import start_fork_server
from engine.tracing import LOADED
from engine.training.checks import CheckedRun
from engine.training.config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from engine.planning.plan import Forecasting
    from engine.planning.rank import Ranking
    from engine.planning.workload import Candidate, Workload
    from engine.simulator.machine import MachineModel

SHORT = 3
"""A short plan simulates so many grids of each order, and as many pipelines."""
Config = TypeVar("Config", bound=RunConfig)


class Planned(NamedTuple):
    """Grid of a plan for a system."""

    grid: str
    micro_batch: int
    schedule: str | None
    """of a grid with stages"""
    time_s: float
    """of a step"""
    low_s: float
    """low end of the interval of that time"""
    high_s: float
    system: str


def simulated(most: int | None = None, *, exact: bool = False, whole: bool = True) -> "Forecasting":
    """Simulate grids of a plan. most: so many of each order and of pipelines, if not the usual number. whole: whether
    those of one stage, too.
    """
    if most is None and len(cores()) > 1:
        start_fork_server(*LOADED)  # which loads torch while the plan is made

    def forecasting(
        workload: "Workload", ranking: "Ranking", machine: "MachineModel", shown: int
    ) -> Sequence["Candidate"]:
        with loading():
            from engine.tracing.forecast import choose, forecast

        some = ranking if whole else replace(ranking, candidates=())
        first = choose(workload, some, machine.bandwidths.devices_per_node, most)
        return forecast(workload, first, machine, exact=exact, shown=shown) if first else []

    return forecasting


def with_grid(config: Config, overlap: Overlap, ranks: int, launch: Launch | None = None) -> tuple[Config, list[str]]:
    """Return the options with the grid that a short plan finds the fastest, its micro-batch and its schedule, as far as
    a person left these to us, and say what was taken.

    The options stay as they are where a grid is given, or --pipe 1 rules stages out, and on a machine that can't be
    simulated, unless it is named. launch: rank 0 plans for all of its ranks, which have to meet for that.
    Raises UsageError for a system that there isn't, also where it isn't needed.
    """
    check_system(config)
    if config.grid is not None or config.pipe == 1 or ranks == 1:
        return config, []
    try:
        best = fastest(config, overlap, ranks, launch)[0]
    except UsageError:
        if config.system is not None:
            raise
        return config, []
    pipeline = config.pipeline
    words = [best.grid, "--micro-batch", str(best.micro_batch)]
    if best.schedule is not None:
        choice = ScheduleChoice.parse(best.schedule)
        words += choice.words
        pipeline = choice.options(pipeline.stages) if pipeline.schedule == AUTO else pipeline
    batch = replace(config.batch, micro=best.micro_batch)
    changed = replace(config, grid=Grid.parse(best.grid), batch=batch, pipeline=pipeline)
    return changed, [
        f"--grid auto takes {' '.join(words)}, the fastest on {best.system} by simulation: {best.time_s:.3g} s a step "
        f"({best.low_s:.3g} to {best.high_s:.3g} s)."
    ]


def check_traced_memory(run: CheckedRun) -> None:
    """Raise UsageError if a step of the run needs more than --device-memory, by a trace where a count can't tell."""
    memory, device = run.config.device_memory, run.config.device_kind
    if memory is None:
        return
    for training, grid in run.trainings:
        if not Footprint(training, device).surely_fits(grid, memory):
            with loading():
                from engine.tracing.memory import check_memory

            check_memory(training, grid, memory, device)


def check_system(config: RunConfig) -> None:
    """Raise UsageError for a system that there isn't, whether or not it is needed."""
    if config.system is not None:
        import systems

        systems.load(config.system)


def fastest(
    config: RunConfig, overlap: Overlap, ranks: int, launch: Launch | None = None, shown: int = 1
) -> list[Planned]:
    """Return the first rows of a short plan, so many if there are. launch: rank 0 plans, and tells the other ranks,
    which have to meet for that. Raises UsageError where there is none.
    """
    plan = _prepare(config, overlap, ranks, shown)
    if launch is None or launch.world_size == 1:
        return plan()
    with loading():
        from engine.comm.meeting import broadcast_before_groups

    limits = {"meeting_s": config.meeting_timeout_s, "limit_s": config.timeout_s}
    told = broadcast_before_groups(launch, lambda: json.dumps(plan()), "while it chose a grid", **limits)
    return [Planned(*row) for row in json.loads(told)]


def _prepare(config: RunConfig, overlap: Overlap, ranks: int, shown: int) -> Callable[[], list[Planned]]:
    """Prepare a short plan. Raises UsageError, at once where the machine can't be simulated, and in the plan where no
    grid fits.
    """
    import systems
    from engine.planning.plan import make_plan
    from engine.simulator.machine import MachineModel

    system = systems.named(config.system)
    training = TrainConfig.of(config, overlap=overlap).training(config.model.resolve())
    batch = training.batch
    space = SearchSpace(training.model, batch.sequences, exact=True, micro=batch.micro, stages=config.pipe)
    space.check(ranks)
    MachineModel.of(system, training.precision, systems.measured(system.name), ranks)
    forecast, memory = simulated(max(SHORT, shown), whole=config.pipe is None), config.device_memory

    def plan() -> list[Planned]:
        found, _ = make_plan(training, space, ranks, system, shown=shown, forecast=forecast, device_memory=memory)
        if not found.rows:
            raise UsageError(
                f"{training.model.name} fits on no grid of {ranks} devices with {config.pipe} stages: give another "
                "--pipe."
            )
        return [
            Planned(row.grid, row.micro_batch, row.schedule, row.time_s, *row.interval_s, system.name)
            for row in found.rows
            if row.time_s is not None and row.interval_s is not None
        ]

    return plan
