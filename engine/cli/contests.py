"""Commands whose sides take turns in the same processes: `bench overlap`, `pipeline`, `grids` and `optimisations`."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from engine.cli.common import Json, take_place
from engine.cli.grid import check_system, fastest, with_grid
from engine.cli.train import PaceOptions, carry_out
from engine.contest.grids import CHOICE, GridChoice, check_grids
from engine.contest.optimisations import OF_THE_PAPER, check_optimisations
from engine.contest.overlap import check_overlaps
from engine.contest.rounds import ROUNDS, Disturbance, Rounds
from engine.contest.schedules import check_schedules, parse_names
from engine.errors import UsageError
from engine.grid import Grid
from engine.options import GridOrAuto, word, words
from engine.overlap.flags import ALL, Overlap, Pace
from engine.pipeline.registry import ScheduleChoice
from engine.training.config import RunConfig
from engine.training_record import OVERLAP, OverlapFlags

FULL_HELP = "flags that are added one after the other, and each alone: none, all, or as in train"
VARIANT_HELP = "compared with none, instead of what is made of the flags above; repeatable"
NAMES_HELP = "compared with 1f1b: a comma list of what --schedule takes (default: all that can be, but one-by-one)"
TIMELINE_HELP = "keep when each stage did what, of a step of each schedule"
CANDIDATE_HELP = (
    "compared, the first with all others, such as 1x1x2x4, 1x1x1x2p4,8,zero-bubble or 1x4x1x1,split; repeatable"
)
FIRST_HELP = "where none is named, so many that the plan for --system, or this machine, finds the fastest"
BASELINE_HELP = "the baseline's; auto: x over the --devices-per-node, z as few shards as fit, and data the rest"
FOURTH_HELP = "flags of the last side: all, or as in train"
APART_HELP = "build each model for its turns alone, or all at once (default: at once where --device-memory holds all)"
Variants = Annotated[tuple[Overlap, ...], Parameter(help=VARIANT_HELP, group=ROUNDS), words(Overlap.parse, "FLAGS")]
Flags = Annotated[OverlapFlags, Parameter(group=OVERLAP)]
Candidates = Annotated[
    tuple[GridChoice, ...], Parameter(help=CANDIDATE_HELP, group=ROUNDS), words(GridChoice.parse, CHOICE)
]


def overlap(
    *,
    run: RunConfig,
    overlap: Annotated[OverlapFlags, Parameter(help=FULL_HELP, group=OVERLAP)] = ALL,
    variant: Variants = (),
    rounds: Rounds = Rounds(),
    pace: PaceOptions = Pace(),
    json: Json = False,
) -> int:
    """Measure what each overlap of communication with compute gains over none, in turns in the same processes.

    One model is trained, and its overlap changes between steps. Takes the options of train, starts under any launcher
    and writes one result (--out). A flag that has nothing to hide on the grid is left out.

      torchrun --standalone --nproc-per-node 2 -m engine bench overlap \\
          --model gpt-local-2 --grid 1x1x2x1 --batch-size 8 --checkpoint-activations --data synthetic --clip 0

    Without --clip 0 the optimizer waits for all gradients, and data gains less.
    """
    launch = take_place()
    full = overlap.at(pace)
    run, said = with_grid(run, full, launch.world_size, launch)
    contest, left_out = check_overlaps(run, full, launch.world_size, rounds, variant)
    return carry_out(contest, launch, [*said, *left_out], as_json=json)


def pipeline(
    *,
    run: RunConfig,
    overlap: Flags = ALL,
    schedules: Annotated[tuple[str, ...], Parameter(help=NAMES_HELP, group=ROUNDS), word(parse_names, "NAME,..")] = (),
    timeline: Annotated[bool, Parameter(help=TIMELINE_HELP, group=ROUNDS)] = False,
    rounds: Rounds = Rounds(),
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
    full = overlap.at(pace)
    found, said = with_grid(run, full, launch.world_size, launch)
    run = replace(found, pipeline=run.pipeline)
    contest, left_out = check_schedules(run, full, launch.world_size, rounds, schedules, disturbance, drawn=timeline)
    return carry_out(contest, launch, [*said, *left_out], as_json=json)


def grids(
    *,
    run: RunConfig,
    overlap: Flags = ALL,
    candidate: Candidates = (),
    first: Annotated[int, Parameter(metavar="N", help=FIRST_HELP, group=ROUNDS)] = 4,
    rounds: Rounds = Rounds(),
    pace: PaceOptions = Pace(),
    json: Json = False,
) -> int:
    """Measure how long a step takes on each of several grids, in turns in the same processes.

    So one sees which grid is the fastest though the machine's speed drifts, and whether the plan was right. Takes the
    options of train, starts under any launcher and writes one result (--out).

      torchrun --standalone --nproc-per-node 2 -m engine bench grids --model gpt-local-2 --batch-size 8 \\
          --data synthetic --candidate 1x1x1x2 --candidate 1x1x2x1 --candidate 1x1x1x1p2,1,zero-bubble
    """
    launch = take_place()
    full = overlap.at(pace)
    check_system(run)
    if run.grid is not None:
        raise UsageError(f"bench grids compares several grids: give --candidate {run.grid} among others, not --grid.")
    choices: dict[GridChoice, float | None] = dict.fromkeys(candidate)
    if not choices:
        for row in fastest(run, full, launch.world_size, launch, first):
            schedule = ScheduleChoice.parse(row.schedule) if row.schedule else None
            choices[GridChoice(Grid.parse(row.grid), row.micro_batch, schedule)] = row.time_s
    contest, left_out = check_grids(run, full, launch.world_size, rounds, choices)
    return carry_out(contest, launch, left_out, as_json=json)


def optimisations(
    *,
    run: RunConfig,
    baseline: Annotated[GridOrAuto, Parameter(help=BASELINE_HELP, show_default="auto", group=ROUNDS)] = None,
    overlap: Annotated[
        OverlapFlags, Parameter(help=FOURTH_HELP, show_default=str(OF_THE_PAPER), group=OVERLAP)
    ] = OF_THE_PAPER,
    apart: Annotated[bool | None, Parameter(help=APART_HELP, negative="--at-once", group=ROUNDS)] = None,
    rounds: Rounds = Rounds(),
    pace: PaceOptions = Pace(),
    json: Json = False,
) -> int:
    """Measure what a step gains by each optimisation, added to those before it, in turns (axonn-sc24 Fig. 7).

    Four sides: the baseline, tensor parallelism within a node and hybrid sharding across nodes (--baseline); the
    performance model's grid (--grid); tuned matrix products on it; and overlap. All train the same, which their first
    losses have to show. Compute and exposed communication of each are told apart. Takes the options of train, starts
    under any launcher and writes one result (--out).

      torchrun --standalone --nproc-per-node 2 -m engine bench optimisations \\
          --model gpt-local-2 --batch-size 8 --data synthetic --baseline 2x1x1x1 --grid 1x1x2x1
    """
    launch = take_place()
    full = overlap.at(pace)
    run, said = with_grid(run, Overlap(), launch.world_size, launch)
    contest, left_out = check_optimisations(run, baseline, full, launch.world_size, rounds, apart=apart)
    return carry_out(contest, launch, [*said, *left_out], as_json=json)
