"""torchtitan, without and with its sequence parallelism."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import STREAM_WHOLE, Comparison, Habits, Option, and_by_positions

COMPARISONS = and_by_positions(
    Comparison(
        "torchtitan",
        "torchtitan",
        Grid(x=2),
        "engine.peers.external.torchtitan:TorchTitan",
        library="torchtitan",
        splits=("tensor", "pipeline", "data"),
        does=f"vocabulary split over tensor ranks, {STREAM_WHOLE}, weights over data ranks (FSDP), whose "
        "gradients are summed in fp32 always, clipped by the norm over all ranks",
        families=("llama",),
    )
)
OPTIONS = {
    "torchtitan": {
        "CompileConfig": {
            "enable": Option(False, True, "torchtitan/config/configs.py (model and loss)", needs="triton"),
            "enable_async_tensor_parallel": Option(False, True, "torchtitan/distributed/compile.py", needs="triton"),
        }
    }
}
_HABITS = Habits(data="weights", keeps="in a pipeline", autocast=False, copies=False, built="host")
MEMORY = {"torchtitan": _HABITS, "torchtitan-sp": replace(_HABITS, stream=True)}
