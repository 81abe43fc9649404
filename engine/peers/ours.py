"""The engine as a side of a comparison: what `engine train` runs, of the code that this process has."""

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers.matmul import Kernels
from engine.measure.recorder import Recorder
from engine.overlap.flags import Overlap
from engine.peers.comparison import Case
from engine.peers.peer import StepMetrics, Tensors, check_taken
from engine.peers.timed_side import LocalSide
from engine.training.run import tuned
from engine.training.trainer import LossScale, Trainer


def connect(grid: Grid, case: Case, device: torch.device, recorder: Recorder | None = None) -> Comm:
    """Make the groups of a grid."""
    return Comm(grid, timeout=case.collective_timeout, recorder=recorder, device=device)


def trainer(
    case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({}), *, overlaps: Sequence[Overlap] = ()
) -> Trainer:
    """Make what runs it. kernels: of layers, by name. overlaps: between which it will switch."""
    data, recorder = case.model.task.data.synthetic(), comm.recorder or Recorder()
    made = Trainer(case, data, comm, recorder, kernels, overlaps=overlaps)
    if made.loss_scale is not None:
        made.loss_scale = LossScale(case.loss_scale, interval=sys.maxsize)  # it never grows
    return made


class Ours:
    """The engine on the grid of comm; as a peer (registry.py), every product is as PyTorch does it.

    kernels: of its layers, by name.
    """

    def __init__(self, case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({})) -> None:
        self._case, self._trainer = case, trainer(case, comm, kernels)

    def step(self, _: Tensors | None = None) -> StepMetrics:
        """Take a step. The trainer draws the same rows of the same batches by itself."""
        done = self._trainer.step()
        check_taken(self._case, taken=not done.skipped)
        return StepMetrics(done.loss, done.gradient_norm)


def build_side(grid: Grid, case: Case, device: torch.device) -> LocalSide:
    """Build and warm up the engine on a grid in a process of its own, once its ranks have met. Collective."""
    comm = connect(grid, case, device, Recorder.on(device, breakdown=False, alone=grid.size == 1))
    kernels = tuned(case, comm)[0] if case.tune_matmul else {}
    return LocalSide(lambda: Ours(case, comm, kernels).step, device, case.warmup)
