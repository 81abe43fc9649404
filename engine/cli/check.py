"""`check` says what a training run would come to, without starting it."""

from dataclasses import asdict, replace
from typing import Annotated

from cyclopts import Parameter

from engine.cli.common import Json, facts, size, write
from engine.cli.grid import check_traced_memory, with_grid
from engine.cli.train import PaceOptions
from engine.footprint.fit import lacking_memory, parameters_per_rank
from engine.footprint.memory import Needs
from engine.loading import loading
from engine.models.image_operations import norms_that_share
from engine.output import complain
from engine.overlap.flags import Pace
from engine.tensor_mode import ALGORITHM_1
from engine.training.checks import CheckedRun, checked, notices
from engine.training.config import RUN, TrainConfig


def check(
    *,
    ranks: Annotated[int, Parameter(help="processes that would be started", group=RUN)],
    config: TrainConfig,
    pace: PaceOptions = Pace(),
    brief: Annotated[bool, Parameter(help="count no memory, but refuse what doesn't fit", negative=())] = False,
    json: Json = False,
) -> int:
    """Say whether a run would fit, and on which grid, without starting it.

    Takes the options of train, checks all that can be known beforehand, prints the plan. Of memory it tells
    what the allocator hands out at the fullest moment of a step, by what it is for (on a GPU, unless
    --device cpu); its fragments, NCCL's buffers and the device's context come on top.
    """
    overlap = config.overlap.at(pace)
    config, said = with_grid(replace(config, overlap=overlap), overlap, ranks)
    run = checked(config, ranks, needs_weights=False)
    if config.verify:
        run.verify()
    training = run.training
    for notice in [*said, *notices(run)]:
        complain(notice)
    mode = training.mode(run.grid)
    sharing, norms = norms_that_share(training.model.network(), run.grid)
    samples = training.model.task.data.samples
    if brief:
        check_traced_memory(run)
    needs = None if brief else _needs(run)
    figures = {
        "grid": str(run.grid),
        "ranks": run.grid.size,
        "model": training.model.name,
        "parameters": training.model.parameters,
        "parameters_per_rank": parameters_per_rank(training, run.grid),
        **({"memory_bytes_per_rank": {name: round(value) for name, value in asdict(needs).items()}} if needs else {}),
        "sequences_per_rank": training.batch.per_rank(run.grid),
        "micro_batch": training.batch.at_once(run.grid),
        "schedule": str(training.staged(run.grid).choice),
        "training": training.options_on(run.grid),
        **({"norms_that_share_statistics": sharing} if norms else {}),
    }
    parts = {name: size(value) for name, value in asdict(needs).items() if value} if needs else {}
    words = {
        "model": f"{training.model.name}, {training.model.parameters:,} parameters",
        "grid": f"{run.grid} of {run.grid.size:,} ranks",
        **({"tensor mode": mode.on(run.grid)} if mode != ALGORITHM_1 else {}),
        "parameters of a rank": f"{figures['parameters_per_rank']:,}",
        f"{samples} of a rank": f"{figures['sequences_per_rank']:,}, {figures['micro_batch']:,} at once",
        **({"schedule": figures["schedule"]} if run.grid.stages > 1 else {}),
        **({"norms whose groups ranks share": f"{sharing} of {norms}"} if norms else {}),
        **{f"memory of a rank, {name}": part for name, part in parts.items()},
        **({"memory of a rank, in all": size(needs.total)} if needs else {}),
    }
    write(facts(words), figures, as_json=json)
    return 0


def _needs(run: CheckedRun) -> Needs:
    """Trace what a rank needs. Raises UsageError if that is more than --device-memory."""
    with loading():
        from engine.tracing.memory import trace_needs

    memory = run.config.device_memory
    needs = trace_needs(run.training, run.grid, run.config.device_kind, memory)
    if memory is not None and needs.total > memory:
        raise lacking_memory(run.training, run.grid, needs, memory)
    return needs
