"""DTensor's tensor parallelism, without and with its sequence parallelism."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import DECODERS, Comparison, Habits

_TENSOR = Comparison(
    "tensor-parallel",
    "DTensor tensor parallelism",
    Grid(x=2),
    "engine.peers.tensor_parallel:TensorParallel",
    ("x",),
    1.0,
    ties=False,
    families=DECODERS,
    together=True,
)
_SEQUENCE = replace(
    _TENSOR,
    name="tensor-parallel-sp",
    peer="DTensor tensor and sequence parallelism",
    target=0.95,
    arguments={"sequence_parallel": True},
)
COMPARISONS = (_TENSOR, _SEQUENCE)
MEMORY = {"tensor-parallel": Habits(), "tensor-parallel-sp": Habits(stream=True)}
