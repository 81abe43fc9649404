"""Which of PyTorch's kernels computes attention. It chooses by shape, format and device, and falls back silently."""

from enum import StrEnum

import torch


class Backend(StrEnum):
    """By the numbers that PyTorch gives them."""

    MATH = "math"
    """Products and a softmax: the scores of all pairs of positions lie in memory."""
    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    OTHER = "other"
    """Of a device that brings its own."""


def backend(
    heads: int, kv_heads: int, head_size: int, sequence: int, dtype: torch.dtype, device: torch.device
) -> Backend | None:
    """What causal attention of so many heads with gradients takes; None where PyTorch can't compute it at all."""
    q, k = (
        torch.zeros(1, n, sequence, head_size, dtype=dtype, device=device, requires_grad=True)
        for n in (heads, kv_heads)
    )
    number = torch._fused_sdp_choice(q, k, k, None, 0.0, True, enable_gqa=heads != kv_heads)
    return None if number < 0 else list(Backend)[number]
