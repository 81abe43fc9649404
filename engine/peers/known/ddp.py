"""torch's DistributedDataParallel."""

from engine.grid import Grid
from engine.peers.comparison import Comparison, Habits, Option

COMPARISONS = (
    Comparison("ddp", "DistributedDataParallel", Grid(data=2), "engine.peers.ddp:DDP", ("data",), 1.0, together=True),
)
_SOURCE = "torch/nn/parallel/distributed.py"
DISTRIBUTED = {
    "gradient_as_bucket_view": Option(True, True, _SOURCE),
    "static_graph": Option(True, True, f"{_SOURCE} (not with micro-batches)"),
    "bucket_cap_mb": Option(25, 25, f"{_SOURCE} (its default)"),
}
OPTIONS = {"ddp": {"DistributedDataParallel": DISTRIBUTED}}
MEMORY = {"ddp": Habits(vocabulary=False)}
