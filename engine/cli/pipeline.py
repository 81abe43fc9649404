"""`bench pipeline` measures what each schedule of a pipeline's stages takes."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from engine.cli.grid import with_grid
from engine.cli.place import take_place
from engine.cli.train import PaceOptions, carry_out
from engine.cli.written import Json
from engine.options import word
from engine.overlap.flags import ALL, Pace
from engine.training.ablation import TURNS, Turns
from engine.training.config import OVERLAP, OverlapFlags, RunConfig
from engine.training.schedules import Disturbance, checked_schedules, parse_names

NAMES_HELP = "compared with 1f1b: a comma list of what --schedule takes (default: all that can be, but one-by-one)"
TIMELINE_HELP = "keep when each stage did what, of a step of each schedule"


def pipeline(
    *,
    run: RunConfig,
    overlap: Annotated[OverlapFlags, Parameter(group=OVERLAP)] = ALL,
    schedules: Annotated[tuple[str, ...], Parameter(help=NAMES_HELP, group=TURNS), word(parse_names, "NAME,..")] = (),
    timeline: Annotated[bool, Parameter(help=TIMELINE_HELP, group=TURNS)] = False,
    turns: Turns = Turns(),
    disturbance: Disturbance = Disturbance(),
    pace: PaceOptions = Pace(),
    json: Json = False,
) -> int:
    """Measure how long a step takes under each schedule of a pipeline, and how long its stages are idle, in turns.

    The schedule changes between steps in the same processes; interleaved, whose cut is another, trains a model of its
    own. Takes the options of train, starts under any launcher and writes one result (--out), in which a simulation of
    all stages stands beside what was measured.

      torchrun --standalone --nproc-per-node 2 -m engine bench pipeline --model gpt-local-2 \\
          --grid 1x1x1x1 --pipe 2 --batch-size 8 --micro-batch 1 --data synthetic --timeline
    """
    launch = take_place()
    found, said = with_grid(run, overlap.at(pace), launch.world_size, launch)
    run = replace(found, pipeline=run.pipeline)
    comparison, notices = checked_schedules(
        run, overlap.at(pace), schedules, turns, disturbance, launch.world_size, drawn=timeline
    )
    return carry_out(comparison, launch, [*said, *notices], as_json=json)
