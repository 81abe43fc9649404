"""Number formats in which a network is stored, computed and reduced."""

from dataclasses import dataclass

import torch

from engine.reduce_dtype import reduce_dtype

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of a training. Norm statistics and losses are never below fp32."""

    master: torch.dtype
    """stored shards and the optimizer's state"""
    compute: torch.dtype
    """gathered weights and activations"""
    gradient: torch.dtype
    """gradients of shards, in which micro-batches are added"""
    given: str | None = None
    """name of the format in which gradients are summed over ranks, where reduce() doesn't choose it"""

    @classmethod
    def parse(
        cls, name: str, reduce: str | None = None, gradient: str | None = None, master: str | None = None
    ) -> "Precision":
        """Make fp32 or fp64 throughout, or half compute over fp32 masters. reduce: for sums of gradients over ranks.
        gradient: for sums over micro-batches, by default fp32 or fp64. master: for stored shards, by default the same.
        """
        compute = DTYPES[name]
        wide = torch.float32 if compute.itemsize < torch.float32.itemsize else compute
        stored = DTYPES[master] if master else wide
        return cls(stored, compute, DTYPES[gradient] if gradient else wide, reduce)

    def reduce(self, ranks: int) -> torch.dtype:
        """Return the format of weight gradients while they are summed over ranks of an axis."""
        return DTYPES[reduce_dtype(NAMES[self.compute], ranks, self.given)]


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32, or as it is in float64: for statistics and losses."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
