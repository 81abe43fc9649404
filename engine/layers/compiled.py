"""Pure functions of tensors that Inductor compiles for GPUs: a pass over memory where PyTorch makes one an operator.

What processors run stays the reference. TORCH_COMPILE_DISABLE=1 has everything run uncompiled. What is compiled is kept
for other runs, in the user's cache folder unless TORCHINDUCTOR_CACHE_DIR names another.
"""

import os
from collections.abc import Callable
from functools import cached_property
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from engine.files import cache_folder

Given = ParamSpec("Given")
Found = TypeVar("Found")


class Compiled(Generic[Given, Found]):
    """A function in two forms. plain: what processors run; source: what is compiled, the same unless it is given.

    Its first argument, a tensor, says where it runs.
    """

    def __init__(self, plain: Callable[Given, Found], source: Callable[Given, Found] | None = None) -> None:
        self.plain, self.source = plain, source or plain

    def __call__(self, *given: Given.args, **named: Given.kwargs) -> Found:
        """Compiled for the tensors of a GPU, where there is a compiler for it."""
        first = given[0]
        assert isinstance(first, Tensor)
        return (self.fused if first.is_cuda and has_compiler() else self.plain)(*given, **named)

    @cached_property
    def fused(self) -> Callable[Given, Found]:
        """The source, compiled when it is first called with such tensors."""
        folder = cache_folder()
        if folder is not None:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        compiled: Callable[Given, Found] = torch.compile(self.source, fullgraph=True)
        return compiled


def has_compiler() -> bool:
    """Whether Inductor can compile for the GPU, which takes Triton."""
    from torch.utils._triton import has_triton  # it remembers

    return has_triton()
