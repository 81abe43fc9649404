"""`bench peers` measures the engine against other people's parallelism."""

import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from engine.batch import Batch
from engine.cli.place import take_place
from engine.cli.written import Json, write
from engine.errors import UsageError
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.options import Bytes, Device, Grids, Labels, Out, words
from engine.overlap.flags import ALL
from engine.peers.comparison import Case, Sampling
from engine.peers.layout import PeerLayout, parse
from engine.peers.registry import COMPARISONS
from engine.pipeline.options import DEFAULT, PipelineOptions
from engine.result.names import UNTUNED
from engine.training.checks import check_every
from engine.training.config import MODEL, CheckpointEveryN, OverlapFlags, checkpointing

SHAPE: dict[str, Any] = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128}
"""A shape has these sizes where they aren't given."""
PEER_HELP = f"{', '.join(COMPARISONS)}, all of these, or {UNTUNED} (ourselves, where ours is tuned); repeatable"
LAYOUT_HELP = "of the peer, where it isn't our grid's: another grid, or such as tensor=2,pipeline=2; repeatable"
GRID_HELP = "instead of the peer's usual one; repeatable. Under a launcher such as srun, its ranks take part"
AGAINST_HELP = "the engine of another commit, in this folder; on each --grid, instead of --peer's default or besides"

MICRO_HELP = "sequences a rank takes at once, both sides (default: its share; of a pipeline 4 parts a stage)"
PEER_MICRO_HELP = "the peer's, where it isn't ours"
DEVICE_MEMORY_HELP = "of one device: a contest that doesn't fit is told, not held (default: a GPU's, else endless)"
NODE_MEMORY_HELP = "of a node's processors, on which some peers make whole networks first (default: endless)"
PRECISION_HELP = "bf16 keeps fp32 masters; no fp16, as sides would skip steps each by its own loss scale"
OF_OURS = "pipeline, of ours: of a grid such as 1x1x1x2p4"
AUTOCAST_HELP = "peers of PyTorch in bf16 by autocast, instead of in bf16 throughout as ours"


def peers(
    *,
    peer: Annotated[tuple[str, ...], Parameter(metavar="NAME", help=PEER_HELP)] = (),
    grid: Annotated[Grids, Parameter(help=GRID_HELP)] = (),
    against: Annotated[Path | None, Parameter(metavar="DIR", help=AGAINST_HELP)] = None,
    layout: Annotated[tuple[PeerLayout, ...], words(parse, "LAYOUT"), Parameter(help=LAYOUT_HELP)] = (),
    overlap: Annotated[OverlapFlags, Parameter(help="as in train")] = ALL,
    tune_matmul: Annotated[bool, Parameter(help="of ours, as in train; what a job before has timed is kept")] = False,
    checkpoint_activations: Annotated[bool, Parameter(help="both sides")] = False,
    checkpoint_every: CheckpointEveryN = None,
    batch_size: Annotated[int, Parameter(metavar="SEQS", help="sequences of a step, all ranks together")] = 8,
    micro_batch: Annotated[int | None, Parameter(metavar="SEQS", help=MICRO_HELP)] = None,
    peer_micro_batch: Annotated[int | None, Parameter(metavar="SEQS", help=PEER_MICRO_HELP)] = None,
    precision: Annotated[Literal["fp32", "fp64", "bf16"], Parameter(help=PRECISION_HELP)] = "fp32",
    autocast: Annotated[bool, Parameter(help=AUTOCAST_HELP)] = False,
    device: Device = "auto",
    device_memory: Annotated[Bytes | None, Parameter(help=DEVICE_MEMORY_HELP)] = None,
    node_memory: Annotated[Bytes | None, Parameter(help=NODE_MEMORY_HELP)] = None,
    devices_per_node: Annotated[int | None, Parameter(help="for --node-memory (default: all of a contest)")] = None,
    labels: Labels = (),
    pipeline: Annotated[PipelineOptions, Parameter(name="*", group=OF_OURS)] = DEFAULT,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    sampling: Annotated[Sampling, Parameter(name="*", group="sampling")] = Sampling(),
    json: Json = False,
    out: Out = Path("results/peers.json"),
) -> int:
    """Measure step times of the engine's grids against other people's parallelism, in turns in the same processes.

    Without --model a small network: 6 layers, hidden 512, 8 heads, 8192 tokens known, sequences of 128, unless given.
    """
    with loading():
        from engine.peers.compare import chosen, compare, table

    if model.model is None:
        given = {key: value for key, value in asdict(model).items() if value is not None}
        model = ModelChoice(**(SHAPE | given))
    launch = take_place(out)
    case = Case(
        model=model.resolve().without_zeros(),
        batch=Batch(batch_size, micro_batch),
        peer_micro_batch=peer_micro_batch or micro_batch,
        precision=precision,
        autocast=autocast,
        device=device,
        checkpoint_every=checkpointing(checkpoint_activations, checkpoint_every),
        overlap=overlap,
        tune_matmul=tune_matmul,
        device_memory=device_memory,
        node_memory=node_memory,
        devices_per_node=devices_per_node,
        pipeline=pipeline,
        **asdict(sampling),
    )
    check_every(checkpoint_every, case.model)
    contests = chosen(peer or ([] if against else ["all"]), grid, layout, against)
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
