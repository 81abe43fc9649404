"""Attention of heads, and which of PyTorch's kernels computes it: PyTorch chooses by shape, format and device,
silently.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Mean of values, weighted by the softmax of each query by all keys (Vaswani et al. 2017, Eq. 1).

    Queries, keys and values [B, N, S, D] -> [B, S, N D]. Fewer heads of keys and values each serve a group of query
    heads. causal: whether a position ignores those after it. Of more keys than queries, the last are at the queries'
    own positions.
    """

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor) -> Tensor:
        """Attend; the heads of each position then lie side by side."""
        grouped = q_BNSD.shape[1] != k_BNSD.shape[1]
        queries, keys = q_BNSD.shape[2], k_BNSD.shape[2]
        if self.causal and queries != keys:  # is_causal would put the first of both at one position
            seen = torch.ones(queries, keys, dtype=torch.bool, device=q_BNSD.device).tril(keys - queries)
            o_BNSD = _kernel(q_BNSD, k_BNSD, v_BNSD, attn_mask=seen, enable_gqa=grouped)
        else:
            o_BNSD = _kernel(q_BNSD, k_BNSD, v_BNSD, is_causal=self.causal, enable_gqa=grouped)
        return o_BNSD.transpose(1, 2).flatten(2)


_kernel: Callable[..., Tensor] = F.scaled_dot_product_attention


@contextmanager
def use_kernel(kernel: Callable[..., Tensor]) -> Iterator[None]:
    """Have attention call this kernel meanwhile, with the arguments of F.scaled_dot_product_attention."""
    global _kernel
    before, _kernel = _kernel, kernel
    try:
        yield
    finally:
        _kernel = before


class AttentionKernel(StrEnum):
    """Kernel of PyTorch's, in the order of PyTorch's numbers."""

    MATH = "math"
    """products and a softmax, with the scores of all pairs of positions in memory"""
    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    OTHER = "other"
    """a device's own"""


def backend(
    heads: int, kv_heads: int, head_size: int, sequence: int, dtype: torch.dtype, device: torch.device, *, causal: bool
) -> AttentionKernel | None:
    """Return the kernel for attention with gradients; None where PyTorch can't compute it at all."""
    q, k = (
        torch.zeros(1, n, sequence, head_size, dtype=dtype, device=device, requires_grad=True)
        for n in (heads, kv_heads)
    )
    number = torch._fused_sdp_choice(q, k, k, None, 0.0, causal, enable_gqa=heads != kv_heads)
    return None if number < 0 else list(AttentionKernel)[number]
