"""A network is stored, computed and reduced in these number formats."""

from dataclasses import dataclass

import torch

from engine.reduce_dtype import gradient_dtype, reduce_dtype

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Precision:
    """It names the number formats. master: the stored shards and the optimizer. compute: gathered weights and
    activations. gradient: gradients of shards, in which micro-batches are added. given: the name of the format in which
    they are summed over ranks, if it is not for reduce() to choose. Norm statistics and losses are never below fp32.
    """

    master: torch.dtype
    compute: torch.dtype
    gradient: torch.dtype
    given: str | None = None

    @classmethod
    def named(cls, name: str, reduce: str | None = None, *, offload: bool = False) -> "Precision":
        """Make fp32 or fp64 throughout, or half compute over fp32 masters. reduce: for all sums of gradients, over
        micro-batches as well where masters are offloaded, and little else is left on the device.
        """
        compute = DTYPES[name]
        master = torch.float32 if compute.itemsize < torch.float32.itemsize else compute
        gradient = DTYPES[gradient_dtype(name, reduce, offload=offload)]
        return cls(master, compute, gradient, reduce)

    def reduce(self, ranks: int) -> torch.dtype:
        """Give the format of weight gradients while they are summed over so many ranks, of one axis."""
        return DTYPES[reduce_dtype(NAMES[self.compute], ranks, self.given)]


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """Give the tensor in float32, or as it is in float64: for statistics and losses."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
