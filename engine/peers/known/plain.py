"""Plain PyTorch on one rank, with or without torch.compile; bf16 is throughout, or by autocast.

A step is compiled in the first one, which is never timed. Clipping and the fused optimizer stay as they are.
"""

from subprocess import CalledProcessError

import torch
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

from engine.comm.funnel import Comm
from engine.errors import first_line
from engine.peers.comparison import Case, Unavailable
from engine.peers.peer import StepMetrics, Tensors, serial_model
from engine.peers.registry import choose_settings
from engine.peers.step import TrainingStep

NO_COMPILER = (
    *("InvalidCxxCompiler", "CppCompileError", "TritonMissing", "CalledProcessError", "FileNotFoundError"),
    "Failed to find C compiler",
)
"""Words by which torch and Triton say that the compiler is missing or broken; any other error is a failure of the
comparison.
"""


class Plain(TrainingStep):
    """Step that any PyTorch user writes."""

    def __init__(self, case: Case, comm: Comm) -> None:
        super().__init__(case, serial_model(case, comm.device), comm.device)


class ChannelsLast(TrainingStep):
    """Convolutions whose weights and images have the channels of a pixel side by side, as PyTorch advises.

    The engine has them plane by plane (layers/conv2d.py says what either takes).
    """

    def __init__(self, case: Case, comm: Comm) -> None:
        network = serial_model(case, comm.device)
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        super().__init__(case, network, comm.device)

    def _forward(self, *inputs: Tensor) -> Tensor:
        images, *others = inputs
        return super()._forward(images.contiguous(memory_format=torch.channels_last), *others)


class Compiled(Plain):
    """Step whose forward, loss and backward are compiled as one graph; the rest is plain."""

    def __init__(self, case: Case, comm: Comm) -> None:
        super().__init__(case, comm)
        self._compiled = torch.compile(super()._loss, **choose_settings("compile", "torch.compile", comm.device.type))

    def step(self, batch: Tensors) -> StepMetrics:
        """Take a step. Raises Unavailable where nothing can be compiled."""
        try:
            return super().step(batch)
        except (RuntimeError, CalledProcessError, FileNotFoundError) as error:  # Triton's too, when it launches
            if not any(name in f"{type(error).__name__} {error}" for name in NO_COMPILER):
                raise
            raise Unavailable(
                f"torch.compile fails here: {first_line(error).rstrip('.:')}. It takes a C++ compiler that works, such "
                "as g++, and on a GPU triton and a C compiler."
            ) from error

    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        return self._compiled(batch, divisor)
