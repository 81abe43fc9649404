"""DeepSpeed's start without what it takes beyond a rank's shard: memory that it lets go of again, and a compiler.

Of version 0.19.8 (deepspeed.txt). Nothing that is computed changes, nor a setting: a smaller sub_group_size would spare
ZeRO-3 the same memory, but its optimizer would then take other steps than by its maintainers' default.
"""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.peers.peer import replace_all


def without_building() -> None:
    """Keep it from compiling a sum by shared memory when it starts on processors, for inference only, in a folder that
    all its environments share: it takes minutes beside other work, and a rank that is ended in it leaves a lock for
    which the next ones wait without end.
    """
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # not .torch itself


def with_half(device: torch.device) -> None:
    """Let it train in fp16 on processors, too, where it takes that only if oneDNN has kernels for it; what computes is
    PyTorch, which has its own.
    """
    if device.type == "cpu":
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True


def without_copies() -> None:
    """Spare the optimizers' start what it holds beyond the shard.

    Weights: ZeRO-1 has all twice while it flattens them; here each is let go once it is copied. Masters: of bf16 and
    fp16 weights ZeRO-1 takes a clone that it converts, and ZeRO-3 converts and clones that; converting copies already.
    Gradients: both make them in fp32 and drop them again.
    """
    one, three = DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3
    replace_all(
        (one, "flatten_dense_tensors_aligned", _flattening(one.flatten_dense_tensors_aligned)),
        (one, "__init__", _converting(one.__init__, torch.bfloat16, torch.float16)),
        (one, "initialize_optimizer_states", lambda self: None),
        (three, "_create_fp32_partitions", _masters(three._create_fp32_partitions)),
        (three, "initialize_optimizer_states", lambda self: None),
    )


def _flattening(flatten: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ZeRO-1's method that flattens tensors, which of weights keeps no second copy."""

    @wraps(flatten)
    def flatten_weights(self: Any, tensors: list[Tensor], alignment: int, **words: Any) -> Tensor:
        whole_weights = isinstance(tensors[0], nn.Parameter) and not words.get("use_cpu_data")
        if not whole_weights or any(words.get("param_padding") or ()):
            return flatten(self, tensors, alignment, **words)
        count, done = sum(tensor.numel() for tensor in tensors), 0
        flat = tensors[0].detach().new_empty(-(-count // alignment) * alignment)
        for tensor in tensors:
            flat[done : done + tensor.numel()].copy_(tensor.detach().view(-1))
            done += tensor.numel()
            tensor.data = flat.new_empty(0)
        flat[done:].zero_()
        return flat

    return flatten_weights


def _converting(build: Callable[..., None], *dtypes: torch.dtype) -> Callable[..., None]:
    """Return a method in which tensors of these formats aren't cloned."""

    @wraps(build)
    def build_without(*words: Any, **options: Any) -> None:
        with _WithoutClones(dtypes):
            build(*words, **options)

    return build_without


def _masters(create: Callable[..., None]) -> Callable[..., None]:
    """Return ZeRO-3's method that makes the masters, of which those that are converted aren't cloned."""
    create_without = _converting(create, torch.float32)

    @wraps(create)
    def create_masters(self: Any) -> None:
        (create if self.dtype == torch.float32 else create_without)(self)

    return create_masters


class _WithoutClones(TorchFunctionMode):
    """Calls in which a clone of a tensor of these formats is that tensor."""

    def __init__(self, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self._dtypes = dtypes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.clone and args[0].dtype in self._dtypes:
            return args[0]
        return func(*args, **(kwargs or {}))
