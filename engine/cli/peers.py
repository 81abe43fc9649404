"""`bench peers` measures the engine against other people's parallelism."""

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from engine.batch import Batch
from engine.cli.common import Json, take_place, write
from engine.errors import UsageError
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.options import Grids, Labels, Out, words
from engine.overlap.flags import ALL
from engine.peers.comparison import Case, PeerTraining, Sampling, SideOptions
from engine.peers.layout import PeerLayout, parse
from engine.peers.registry import COMPARISONS
from engine.pipeline.registry import DEFAULT, PipelineOptions
from engine.result import UNTUNED
from engine.training.config import MODEL, BatchOptions
from engine.training_record import OverlapFlags

SHAPE: dict[str, Any] = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128}
"""A shape has these sizes where they aren't given."""
PEER_HELP = f"{', '.join(COMPARISONS)}, all of these, or {UNTUNED} (ourselves, where ours is tuned); repeatable"
LAYOUT_HELP = "of the peer, where it isn't our grid's: another grid, or such as tensor=2,pipeline=2; repeatable"
GRID_HELP = "instead of the peer's usual one; repeatable. Under a launcher such as srun, its ranks take part"
AGAINST_HELP = "the engine of another commit, in this folder; on each --grid, instead of --peer's default or besides"

OF_OURS = "pipeline, of ours: of a grid such as 1x1x1x2p4"


def peers(
    *,
    peer: Annotated[tuple[str, ...], Parameter(metavar="NAME", help=PEER_HELP)] = (),
    grid: Annotated[Grids, Parameter(help=GRID_HELP)] = (),
    against: Annotated[Path | None, Parameter(metavar="DIR", help=AGAINST_HELP)] = None,
    layout: Annotated[tuple[PeerLayout, ...], words(parse, "LAYOUT"), Parameter(help=LAYOUT_HELP)] = (),
    overlap: Annotated[OverlapFlags, Parameter(help="as in train")] = ALL,
    training: PeerTraining = PeerTraining(),
    batch: BatchOptions = Batch(8),
    sides: SideOptions = SideOptions(),
    labels: Labels = (),
    pipeline: Annotated[PipelineOptions, Parameter(name="*", group=OF_OURS)] = DEFAULT,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    sampling: Annotated[Sampling, Parameter(name="*", group="sampling")] = Sampling(),
    json: Json = False,
    out: Out = Path("results/peers.json"),
) -> int:
    """Measure step times of the engine's grids against other people's parallelism, in turns in the same processes.

    Without --model a small network: 6 layers, hidden 512, 8 heads, 8192 tokens known, sequences of 128, unless given;
    without --batch-size 8 of these a step.
    """
    with loading():
        from engine.peers.compare import choose_comparisons, compare, table

    if model.model is None:
        given = {key: value for key, value in asdict(model).items() if value is not None}
        model = ModelChoice(**(SHAPE | given))
    launch = take_place(out)
    network = model.resolve().without_zeros()
    training.check(network)
    own = asdict(sampling) | asdict(sides) | {"peer_micro_batch": sides.peer_micro_batch or batch.micro}
    case = Case.of(training, network, batch, overlap=overlap, pipeline=pipeline, **own)
    contests = choose_comparisons(peer or ([] if against else ["all"]), grid, layout, against)
    try:
        report = compare(contests, case, out, launch, dict(labels))
    except Exception as error:
        if launch.world_size == 1 or isinstance(error, UsageError):
            raise
        logging.shutdown()
        os._exit(1)  # at once, as a failed rank of train: its tidying up would wait for the others
    if report is not None:
        write(f"{table(report)}{out}", out, as_json=json)
    return 0
