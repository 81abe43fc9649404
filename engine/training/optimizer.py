"""Training asks this of an optimizer. Who adds one implements this, and the trainer, checkpoints and plans take it."""

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor, nn

from engine.optimizer_state import OptimizerState
from engine.parallel.model import ParallelModel
from engine.training_record import OptimConfig


class Optimizer(Protocol):
    """It is an optimizer of the flat tensor of a rank's parameters, any part of which can be stepped alone."""

    keeps: OptimizerState
    """It says what is kept of each parameter and where, which plans count."""
    state: Mapping[nn.Parameter, Mapping[str, Tensor]]
    """These are the tensors by parameter and name, each in the parameter's shape; checkpoints write and fill them."""
    learning_rate: float
    """It is the rate of the step that was started last."""

    def start_step(self, done: int, *, skipped: int = 0) -> None:
        """Prepare the next step, so many being done, by which the rate goes; of these some were skipped, as if they had
        not been.
        """
        ...

    def step(self, start: int = 0, stop: int | None = None, *, scale: Tensor | None = None) -> None:
        """Step the elements [start, stop), by default all, with their gradients times scale."""
        ...


MakeOptimizer = Callable[[ParallelModel, OptimConfig], Optimizer]
