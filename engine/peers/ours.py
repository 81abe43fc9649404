"""The engine's side of a comparison: what `engine train` runs."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.layers.matmul import Kernels
from engine.measure.recorder import Recorder
from engine.models.choice import ModelChoice
from engine.peers.comparison import Case
from engine.peers.peer import StepMetrics, Tensors
from engine.training.config import TrainConfig
from engine.training.plan import Plan
from engine.training.trainer import Trainer


def plan(case: Case, comm: Comm, *, tune: bool = False) -> Plan:
    """Plan the engine's training of the case on the grid of comm."""
    config = TrainConfig(
        model=ModelChoice(),
        grid=comm.grid,
        batch=Batch(case.sequences, case.micro_batch),
        data="synthetic",
        out=Path(),
        checkpoint_activations=case.checkpoint_activations,
        overlap=case.overlap,
        optim=case.optim,
        seed=case.seed,
        precision=case.precision,
        reduce_dtype=case.precision,  # as the peers do
        tune_matmul=tune,
    )
    return Plan(config, case.model, comm.grid, case.model.task.data.synthetic())


def trainer(case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({})) -> Trainer:
    """What runs it. kernels: of layers, by name."""
    return Trainer(plan(case, comm), comm, comm.recorder or Recorder(), kernels)


class Ours:
    """The engine on the grid of comm; as a peer (registry.py), every product is as PyTorch does it.

    kernels: of its layers, by name.
    """

    def __init__(self, case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({})) -> None:
        self._trainer = trainer(case, comm, kernels)

    def step(self, _: Tensors | None = None) -> StepMetrics:
        """See peer.Peer. The trainer draws the same rows of the same batches by itself."""
        done = self._trainer.step()
        return StepMetrics(done.loss, done.gradient_norm)
