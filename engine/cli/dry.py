"""`bench dry` runs one rank of a job of any size, alone."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from engine.cli.common import Json, facts, size, write
from engine.cli.grid import with_grid
from engine.cli.train import PaceOptions
from engine.errors import RunError, UsageError
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.options import Bytes, File, GridOrAuto, check_file
from engine.output import columns, complain
from engine.overlap.flags import ALL, Pace
from engine.pipeline.registry import DEFAULT
from engine.training.checks import checked
from engine.training.config import MODEL, BatchOptions, Pipe, SystemOption, TrainConfig
from engine.training_record import OVERLAP, InPipeline, OverlapFlags, PrecisionName, TrainingOptions

if TYPE_CHECKING:
    from engine.simulator.events import Trace
    from engine.tracing.dry import DryRun


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DryOptions(TrainingOptions):
    """Options of training, in bf16 by default."""

    precision: PrecisionName = "bf16"
    """bf16 and fp16 keep fp32 masters; fp16 scales its loss"""


MEMORY_HELP = "sizes cache=auto, without it nothing is kept; of --grid auto a step must fit"


def dry(
    *,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    grid: Annotated[GridOrAuto, Parameter(help="of the whole job; auto as in train", show_default="auto")] = None,
    ranks: Annotated[int | None, Parameter(help="of the job, for --grid auto")] = None,
    system: SystemOption = None,
    rank: Annotated[int, Parameter(help="which of the grid's ranks runs")] = 0,
    pipe: Pipe = None,
    pipeline: InPipeline = DEFAULT,
    batch: BatchOptions,
    training: DryOptions = DryOptions(),
    device_memory: Annotated[Bytes | None, Parameter(help=MEMORY_HELP)] = None,
    overlap: Annotated[OverlapFlags, Parameter(group=OVERLAP)] = ALL,
    pace: PaceOptions = Pace(),
    trace: Annotated[File | None, Parameter(help="write the step's trace: products, collectives, memory")] = None,
    agree: Annotated[int, Parameter(help="check that so many groups, and the corners, issue the same collectives")] = 0,
    json: Json = False,
) -> int:
    """Run a training step of one rank of any job, alone and without computing; print what it sends and needs.

    The engine's own code runs on the meta device over a fake process group, so that calls and bytes are
    those of a real job's step.

      python -m engine bench dry --model gpt-320b --grid 8x4x16x64 --rank 12345 \\
          --batch-size 8192 --micro-batch 2 --checkpoint-activations
    """
    if trace is not None:
        check_file("--trace", trace)
    if ranks is None and grid is not None:
        ranks = (grid if pipe is None else grid.with_stages(pipe)).size
    if ranks is None:
        raise UsageError("Give the job's grid, by --grid XxYxZxDATA, or for --grid auto its processes, by --ranks.")
    config = TrainConfig(
        model=model,
        grid=grid,
        system=system,
        pipe=pipe,
        pipeline=pipeline,
        batch=batch,
        data="synthetic",
        overlap=overlap.at(pace),
        device_memory=None if grid else device_memory,
        **asdict(training),
    )
    config, said = with_grid(config, config.overlap, ranks)
    for notice in said:
        complain(notice)
    job = checked(config, ranks)
    traced, grid = job.training, job.grid
    if not 0 <= agree <= grid.size:
        raise UsageError(
            f"--agree is a number of groups from 0 to the {grid.size} ranks of the grid, but {agree} was given."
        )
    with loading():
        from engine.simulator import events
        from engine.tracing.dry import corners, disagreements, dry_run, some_groups

    def of(rank: int) -> "tuple[DryRun, Trace]":
        return dry_run(traced, grid, rank, device_memory=device_memory)

    run, events_of_rank = of(rank)
    if trace is not None:
        events.write(events_of_rank, trace)
    write(_words(run), run.as_json(), as_json=json)
    if agree:
        asked = corners(grid) | some_groups(grid, agree)
        found = disagreements(grid, asked, lambda other: of(other)[1])
        if found:
            raise RunError(found[0])
        complain(f"{len(asked)} ranks agree with those of their groups that were asked.")
    return 0


def _words(run: "DryRun") -> str:
    """Write the run for a person."""
    place = ", ".join(f"{axis} {coordinate}" for axis, coordinate in run.coords.items())
    head = facts(
        {
            "model": run.model,
            "rank": f"{run.rank:,} of grid {run.grid}: {place}",
            "parameters": f"{run.parameters_per_rank:,}",
            "micro-batches": f"{run.micro_batches:,}",
            "flops of a step": f"{run.flops:.4g}",
            "memory, state": size(run.state_bytes),
            "memory at its peak": size(run.step_bytes),
            "blocks kept gathered": f"{run.cached_blocks:,}",
        }
    )
    sent = [(f"{one.kind} {one.axis}", f"{one.calls:,}", size(one.bytes)) for one in run.collectives]
    return f"{head}\n\n{columns([('collective of a step', 'calls', 'sent'), *sent], left=1)}" if sent else head
