"""torch.distributed.pipelining, under each of its schedules."""

from engine.grid import Grid
from engine.peers.comparison import DECODERS, WHOLE, Comparison

COMPARISONS = tuple(
    Comparison(
        f"pipeline-{name}",
        f"torch.distributed.pipelining, {what}",
        Grid(z=2),
        f"engine.peers.external.pipelining:{built}",
        ties=False,
        families=DECODERS,
        splits=("pipeline",),
        does=WHOLE,
        chunks=chunks,
    )
    for name, what, built, chunks in (
        ("gpipe", "GPipe", "GPipe", 1),
        ("1f1b", "1F1B", "OneForwardOneBackward", 1),
        ("interleaved", "interleaved 1F1B", "Interleaved", 2),
        ("zero-bubble", "interleaved zero bubble", "ZeroBubble", 2),
    )
)
