"""DTensor's tensor parallelism, without and with its sequence parallelism."""

from engine.grid import Grid
from engine.peers.comparison import DECODERS, Comparison

_MODULE = "engine.peers.tensor_parallel"
COMPARISONS = (
    Comparison(
        "tensor-parallel",
        "DTensor tensor parallelism",
        Grid(x=2),
        f"{_MODULE}:TensorParallel",
        ("x",),
        1.0,
        ties=False,
        families=DECODERS,
    ),
    Comparison(
        "tensor-parallel-sp",
        "DTensor tensor and sequence parallelism",
        Grid(x=2),
        f"{_MODULE}:SequenceParallelToo",
        ("x",),
        ties=False,
        families=DECODERS,
    ),
)
