"""`bench overlap` measures what each way to hide communication gains."""

from typing import Annotated

from cyclopts import Parameter

from engine.cli.grid import with_grid
from engine.cli.place import take_place
from engine.cli.train import PaceOptions, carry_out
from engine.cli.written import Json
from engine.options import words
from engine.overlap.flags import ALL, Overlap, Pace
from engine.training.ablation import TURNS, Turns, ablation_notices, checked_ablation
from engine.training.config import OVERLAP, OverlapFlags, RunConfig

FULL_HELP = "flags that are added one after the other, and each alone: none, all, or as in train"
VARIANT_HELP = "compared with none, instead of what is made of the flags above; repeatable"
Variants = Annotated[tuple[Overlap, ...], Parameter(help=VARIANT_HELP, group=TURNS), words(Overlap.parse, "FLAGS")]


def overlap(
    *,
    run: RunConfig,
    overlap: Annotated[OverlapFlags, Parameter(help=FULL_HELP, group=OVERLAP)] = ALL,
    variant: Variants = (),
    turns: Turns = Turns(),
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
    run, said = with_grid(run, overlap.at(pace), launch.world_size, launch)
    ablation = checked_ablation(run, overlap.at(pace), variant, turns, launch.world_size)
    return carry_out(ablation, launch, [*said, *ablation_notices(ablation, variant)], as_json=json)
