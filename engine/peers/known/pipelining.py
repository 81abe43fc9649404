"""torch.distributed.pipelining, under each of its schedules."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import DECODERS, WHOLE, Comparison, Habits

COMPARISONS = tuple(
    Comparison(
        f"pipeline-{name}",
        f"torch.distributed.pipelining, {what}",
        Grid(z=2),
        "engine.peers.external.pipelining:Pipelining",
        ties=False,
        families=DECODERS,
        splits=("pipeline",),
        does=WHOLE,
        chunks=chunks,
        fills_stages=name != "gpipe",
        arguments={"schedule": schedule, "chunks": chunks},
    )
    for name, what, schedule, chunks in (
        ("gpipe", "GPipe", "ScheduleGPipe", 1),
        ("1f1b", "1F1B", "Schedule1F1B", 1),
        ("interleaved", "interleaved 1F1B", "ScheduleInterleaved1F1B", 2),
        ("zero-bubble", "interleaved zero bubble", "ScheduleInterleavedZeroBubble", 2),
    )
)
_STAGES = Habits(vocabulary=False, again="stage")
MEMORY = {one.name: _STAGES for one in COMPARISONS} | {"pipeline-gpipe": replace(_STAGES, flights="all")}
