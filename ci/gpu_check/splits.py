"""Training is split over two ranks, along each axis of the grid alone, with every overlap on.

In float64 it has the serial model's losses and gradient norms; what is read too early or overwritten too soon would
show in them. In bf16, where gradients are cast, summed and cast back in other buffers, each gradient of a step and each
change of a weight is held to plain PyTorch's on the same device, as on one rank (steps.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.batch import Batch
from engine.grid import CUTTING_STAGES, Axis, Grid
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL
from engine.peers.comparison import Case
from engine.peers.ours import Ours
from engine.peers.peer import StepMetrics
from engine.result.metrics import relative_difference
from engine.result.schema.gpu_check import Finding
from engine.training_record import OptimConfig
from gpu_check import rounding
from gpu_check.findings import passes_if
from gpu_check.pair import Pair
from gpu_check.steps import SerialTraining, exact, judged, plain, step_result
from gpu_check.ways import IN_FP32, USUAL

GRIDS = tuple(Grid().sized({axis: 2}) for axis in Axis if axis is not CUTTING_STAGES)
"""Stages have a check of their own (pipelines.py)."""
STEPS = 3
BOUND = 1e-10
CASE = Case(
    model=GPTConfig("two-ranks", layers=3, hidden=128, heads=4, vocabulary=256, sequence=64, tied=True),
    batch=Batch(4),
    precision="fp64",
    checkpoint_every=1,
    # Little ahead, few in flight and small buckets, so that every limit is met.
    overlap=replace(ALL, cache=1, prefetch_depth=3, reduce_window=2, bucket_bytes=1e5),
    optim=OptimConfig(clip=0.0),
)
LINEAR = OptimConfig(learning_rate=1.0, clip=0.0, eps=1.0, weight_decay=0.0)
"""With an epsilon far above every gradient a weight changes by its gradient, nearly. With that of steps.py a gradient
near 0 makes a change that is far off on one side or on the other, and few of them decide over a bias.
"""


def splits(pair: Pair) -> Iterator[Finding]:
    """Give two findings a grid, and one more where gradients are summed over ranks; on the first rank only."""
    cases = [replace(CASE, optim=LINEAR, seed=seed) for seed in rounding.SEEDS]
    first = pair.rank == 0
    if first:
        serial = SerialTraining(CASE).steps(CASE)
        wanted = [serial() for _ in range(STEPS)]
        others = [(plain(one, pair.device), exact(one)) for one in cases]
    for grid in GRIDS:
        comm, what = pair.comm(grid), f"two ranks, {grid}"
        step = Ours(CASE, comm).step
        found = [step() for _ in range(STEPS)]
        if first:
            yield _by_bound(what, found, wanted, pair)
        for way in (USUAL, IN_FP32) if grid.batch_split > 1 else (USUAL,):
            ours = [step_result(way.trainer(replace(one, precision="bf16"), comm)) for one in cases]
            if first:
                yield judged(f"{what}{way.words}", [(mine, *of) for mine, of in zip(ours, others, strict=True)])
        comm.barrier()


def _by_bound(what: str, found: Sequence[StepMetrics], wanted: Sequence[StepMetrics], pair: Pair) -> Finding:
    worst = max(
        relative_difference(*of) for pairs in zip(found, wanted, strict=True) for of in zip(*pairs, strict=True)
    )
    want = f"at most {BOUND:g} from the serial model"
    sentence = f"losses and gradient norms of {STEPS} steps in float64, {pair.words}"
    return passes_if(worst <= BOUND, what, want, sentence, figure=worst)
