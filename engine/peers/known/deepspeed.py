"""DeepSpeed: the stages of ZeRO, its pipeline, and its three dimensions."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import DECODERS, WHOLE, Comparison, Habits, Option

_MODULE = "engine.peers.external.deepspeed"
COMPARISONS = (
    *(
        Comparison(
            f"deepspeed-zero{stage}",
            f"DeepSpeed, ZeRO-{stage}",
            Grid(z=2),
            f"{_MODULE}:ZeRO",
            library="deepspeed",
            splits=("data",),
            does=WHOLE,
            arguments={"stage": stage},
        )
        for stage in (1, 2, 3)
    ),
    Comparison(
        "deepspeed-pipeline",
        "DeepSpeed, pipeline with ZeRO-1",
        Grid(z=2),
        f"{_MODULE}:Pipeline",
        ties=False,
        library="deepspeed",
        families=DECODERS,
        splits=("pipeline", "data"),
        does=WHOLE,
        about="pipeline",
    ),
    Comparison(
        "deepspeed-3d",
        "DeepSpeed-3D: tensor, pipeline and data ranks, ZeRO-1",
        Grid(x=2),
        f"{_MODULE}:Pipeline",
        ties=False,
        library="deepspeed",
        families=DECODERS,
        splits=("tensor", "pipeline", "data"),
        does="vocabulary split over tensor ranks and logits gathered, activations whole on each, clipped by the "
        "norm over all ranks",
        about="tensor",
    ),
)
_SOURCE = "deepspeed/runtime/zero/config.py"
OPTIONS = {
    "deepspeed": {
        "zero_optimization": {
            "overlap_comm": Option(True, True, _SOURCE),
            "contiguous_gradients": Option(True, True, _SOURCE),
            "reduce_scatter": Option(True, True, _SOURCE),
            "reduce_bucket_size": Option(500000000, 500000000, _SOURCE),
            "allgather_bucket_size": Option(500000000, 500000000, _SOURCE),
            "stage3_prefetch_bucket_size": Option(50000000, 50000000, _SOURCE),
        }
    }
}
_HABITS = Habits(data="optimizer", vocabulary=False, autocast=False)
MEMORY = {one.name: _HABITS for one in COMPARISONS} | {
    "deepspeed-zero2": replace(_HABITS, data="gradients"),
    "deepspeed-zero3": replace(_HABITS, data="weights"),
}
