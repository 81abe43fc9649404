"""The serial model and its loss under torch.compile, on one rank; bf16 as in plain.py.

It is compiled in the first step, which is never timed. Clipping and the fused optimizer stay as they are.
"""

from subprocess import CalledProcessError

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.peers.comparison import Case, Unavailable
from engine.peers.peer import StepMetrics, Tensors
from engine.peers.plain import Plain
from engine.peers.settings import chosen

NO_COMPILER = (
    *("InvalidCxxCompiler", "CppCompileError", "TritonMissing", "CalledProcessError", "FileNotFoundError"),
    "Failed to find C compiler",
)
"""How torch and Triton say that it is the compiler which is missing or broken; anything else is a failure of the
comparison.
"""


class Compiled(Plain):
    """Forward, loss and backward are compiled as one graph; the rest of the step is plain."""

    def __init__(self, case: Case, comm: Comm) -> None:
        super().__init__(case, comm)
        self._compiled = torch.compile(super()._loss, **chosen("compile", "torch.compile", comm.device.type))

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.Peer. Raises Unavailable where nothing can be compiled."""
        try:
            return super().step(batch)
        except (
            RuntimeError,
            CalledProcessError,
            FileNotFoundError,
        ) as error:  # Triton's own ones too, when it launches
            if not any(name in f"{type(error).__name__} {error}" for name in NO_COMPILER):
                raise
            told = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise Unavailable(
                f"torch.compile fails here: {told.rstrip('.:')}. It takes a C++ compiler that works, such as g++, and "
                "on a GPU triton and a C compiler."
            ) from error

    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        return self._compiled(batch, divisor)
