"""torch's fully_shard: gathered weights kept or gathered twice, over all ranks or in copies."""

from dataclasses import replace

from engine.grid import Grid
from engine.peers.comparison import Comparison, Habits, Option

COMPARISONS = (
    Comparison("fsdp2", "fully_shard, keeps gathered weights", Grid(z=2), "engine.peers.fsdp2:FSDP2", ("z",), 1.0),
    Comparison(
        "fsdp2-reshard", "fully_shard, gathers twice", Grid(z=2), "engine.peers.fsdp2:FSDP2Reshard", ("z",), None
    ),
    Comparison("hsdp", "fully_shard, hybrid", Grid(z=2, data=2), "engine.peers.fsdp2:HSDP", ("z", "data"), 1.0),
)
_SOURCE = "torch/distributed/fsdp/_fully_shard/_fully_shard.py"


def _options(*, reshard: bool, where: str = "") -> dict[str, dict[str, Option]]:
    return {
        "fully_shard": {"reshard_after_forward": Option(reshard, reshard, _SOURCE + where)},
        "set_modules_to_forward_prefetch": {"blocks": Option(0, 1, _SOURCE)},
    }


OPTIONS = {
    "fsdp2": _options(reshard=False),
    "fsdp2-reshard": _options(reshard=True),
    "hsdp": _options(reshard=False, where=" (on where activations are recomputed)"),
}
_SHARDED = Habits(data="weights", autocast=False, copies=False, built="parts")
MEMORY = {
    "fsdp2": replace(_SHARDED, keeps="always"),
    "fsdp2-reshard": _SHARDED,
    "hsdp": replace(_SHARDED, keeps="unless recomputing", sums=False),
}
