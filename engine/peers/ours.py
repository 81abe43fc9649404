"""The engine's side of a comparison is what `engine train` runs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.comm.funnel import Comm
from engine.layers.matmul import Kernels
from engine.measure.recorder import Recorder
from engine.overlap.flags import Overlap
from engine.peers.comparison import Case
from engine.peers.peer import StepMetrics, Tensors
from engine.training.trainer import Trainer


def trainer(
    case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({}), *, overlaps: Sequence[Overlap] = ()
) -> Trainer:
    """Make what runs it. kernels: of layers, by name. overlaps: between which it will switch."""
    data, recorder = case.model.task.data.synthetic(), comm.recorder or Recorder()
    return Trainer(case, data, comm, recorder, kernels, overlaps=overlaps)


class Ours:
    """It is the engine on the grid of comm; as a peer (registry.py), every product is as PyTorch does it.

    kernels: of its layers, by name.
    """

    def __init__(self, case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({})) -> None:
        self._trainer = trainer(case, comm, kernels)

    def step(self, _: Tensors | None = None) -> StepMetrics:
        """Take a step. The trainer draws the same rows of the same batches by itself."""
        done = self._trainer.step()
        return StepMetrics(done.loss, done.gradient_norm)
