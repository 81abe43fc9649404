"""`bench grids` measures what a step takes on each of several grids."""

from typing import Annotated

from cyclopts import Parameter

from engine.cli.grid import check_system, fastest
from engine.cli.place import take_place
from engine.cli.train import PaceOptions, carry_out
from engine.cli.written import Json
from engine.errors import UsageError
from engine.grid import Grid
from engine.options import words
from engine.overlap.flags import ALL, Pace
from engine.pipeline.registry import ScheduleChoice
from engine.training.ablation import TURNS, Turns
from engine.training.config import OVERLAP, OverlapFlags, RunConfig
from engine.training.grids import CHOICE, GridChoice, checked_grids

CANDIDATE_HELP = "compared, the first with all others, such as 1x1x2x4 or 1x1x1x2p4,8,zero-bubble; repeatable"
FIRST_HELP = "where none is named, so many that the plan for --system, or this machine, finds the fastest"
Candidates = Annotated[
    tuple[GridChoice, ...], Parameter(help=CANDIDATE_HELP, group=TURNS), words(GridChoice.parse, CHOICE)
]


def grids(
    *,
    run: RunConfig,
    overlap: Annotated[OverlapFlags, Parameter(group=OVERLAP)] = ALL,
    candidate: Candidates = (),
    first: Annotated[int, Parameter(metavar="N", help=FIRST_HELP, group=TURNS)] = 4,
    turns: Turns = Turns(),
    pace: PaceOptions = Pace(),
    json: Json = False,
) -> int:
    """Measure how long a step takes on each of several grids, in turns in the same processes.

    So one sees which grid is the fastest though the machine's speed drifts, and whether the plan was right. Takes the
    options of train, starts under any launcher and writes one result (--out).

      torchrun --standalone --nproc-per-node 2 -m engine bench grids --model gpt-local-2 --batch-size 8 \\
          --data synthetic --candidate 1x1x1x2 --candidate 1x1x2x1 --candidate 1x1x1x1p2,1,zero-bubble
    """
    launch, full = take_place(), overlap.at(pace)
    check_system(run)
    if run.grid is not None:
        raise UsageError(f"bench grids compares several grids: give --candidate {run.grid} among others, not --grid.")
    choices: dict[GridChoice, float | None] = dict.fromkeys(candidate)
    if not choices:
        for row in fastest(run, full, launch.world_size, launch, first):
            schedule = ScheduleChoice.parse(row.schedule) if row.schedule else None
            choices[GridChoice(Grid.parse(row.grid), row.micro_batch, schedule)] = row.time_s
    comparison = checked_grids(run, full, choices, turns, launch.world_size)
    return carry_out(comparison, launch, [], as_json=json)
