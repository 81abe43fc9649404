"""The engine itself is a side of a comparison, of the code that this process has: another commit's, or ours beside it.

Only such a side loads all this; a library's environment need not.
"""

import torch

from engine.measure.recorder import Recorder
from engine.peers.alternate import on_grid
from engine.peers.comparison import Case, Comparison
from engine.peers.ours import Ours
from engine.peers.timed_side import LocalSide
from engine.training.run import tuned


def engine_side(comparison: Comparison, case: Case, device: torch.device) -> LocalSide:
    """Build and warm up the engine on the comparison's grid as ours is built elsewhere, once its ranks have met."""
    recorder = Recorder.on(device, breakdown=False, alone=comparison.grid.size == 1)
    comm = on_grid(comparison.grid, case, device, recorder)
    kernels = tuned(case, comm)[0] if case.tune_matmul else {}
    return LocalSide(lambda: Ours(case, comm, kernels).step, device, case.warmup)
