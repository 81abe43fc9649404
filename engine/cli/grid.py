"""`--grid auto` takes what a short plan finds the fastest, where the machine can be simulated. No torch before that."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from engine.errors import UsageError
from engine.grid import Grid
from engine.loading import loading
from engine.overlap.flags import Overlap
from engine.pipeline.registry import AUTO, ScheduleChoice
from engine.planning.grids import SearchSpace
from engine.training.config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from engine.planning.document import Row
    from engine.planning.plan import Forecasting
    from engine.planning.rank import Candidate, Ranking, Workload
    from engine.simulator.machine import MachineModel

SHORT = 3
"""A short plan simulates so many grids of each order, and as many pipelines."""
Config = TypeVar("Config", bound=RunConfig)


def simulated(most: int | None = None, *, exact: bool = False, whole: bool = True) -> "Forecasting":
    """Simulate grids of a plan. most: so many of each order and of pipelines, if not the usual number. whole: whether
    those of one stage, too.
    """

    def forecasting(workload: "Workload", ranking: "Ranking", machine: "MachineModel") -> Sequence["Candidate"]:
        with loading():
            from engine.tracing.forecast import SURVEYED, chosen, forecast

        some = ranking if whole else replace(ranking, candidates=())
        first = chosen(some, machine.bandwidths.devices_per_node, most or SURVEYED)
        return forecast(workload, first, machine, exact=exact) if first else []

    return forecasting


def with_grid(config: Config, overlap: Overlap, ranks: int) -> tuple[Config, list[str]]:
    """Give the options with the grid that a short plan finds the fastest, its micro-batch and its schedule, as far as a
    person left these to us, and say what was taken.

    The options stay as they are where a grid is given, or --pipe 1 rules stages out, and on a machine that can't be
    simulated, unless it is named. All ranks come to the same, each by itself.
    """
    if config.grid is not None or config.pipe == 1 or ranks == 1:
        return config, []
    try:
        name, (row,) = fastest(config, overlap, ranks, 1)
    except UsageError:
        if config.system is not None:
            raise
        return config, []
    grid, pipeline = Grid.parse(row.grid), config.pipeline
    words = [str(grid), "--micro-batch", str(row.micro_batch)]
    if row.schedule is not None:
        choice = ScheduleChoice.parse(row.schedule)
        words += choice.words
        pipeline = choice.options(pipeline.stages) if pipeline.schedule == AUTO else pipeline
    assert row.interval_s is not None
    low_s, high_s = row.interval_s
    said = f"--grid auto takes {' '.join(words)}, the fastest on {name} by simulation: {row.time_s:.3g} s a step"
    changed = replace(config, grid=grid, batch=replace(config.batch, micro=row.micro_batch), pipeline=pipeline)
    return changed, [f"{said} ({low_s:.3g} to {high_s:.3g} s)."]


def fastest(config: RunConfig, overlap: Overlap, ranks: int, shown: int) -> tuple[str, tuple["Row", ...]]:
    """Give the system's name, and the first rows of a short plan for it, so many if there are. Raises UsageError where
    there is none.
    """
    import systems
    from engine.planning.plan import planned

    system = systems.load(config.system) if config.system else systems.here()
    common = {field.name: getattr(config, field.name) for field in fields(RunConfig)}
    training = TrainConfig(**common, overlap=overlap).training(config.model.resolve())
    batch = training.batch
    space = SearchSpace(training.model, batch.sequences, exact=True, micro=batch.micro, stages=config.pipe)
    space.check(ranks)
    forecast = simulated(max(SHORT, shown), whole=config.pipe is None)
    plan, _ = planned(
        training, space, ranks, system, shown=shown, forecast=forecast, device_memory=config.device_memory
    )
    if not plan.rows:
        raise UsageError(
            f"{training.model.name} fits on no grid of {ranks} devices with {config.pipe} stages: give another --pipe."
        )
    return system.name, plan.rows
