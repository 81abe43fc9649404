"""In which number formats a network is stored, computed and reduced."""

from dataclasses import dataclass

import torch

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Precision:
    """master: the stored shards, their gradients and the optimizer. compute: gathered weights and activations.
    reduce: weight gradients while they are summed over z, all gradients over data. Norm
    statistics and losses are never below fp32.
    """

    master: torch.dtype
    compute: torch.dtype
    reduce: torch.dtype

    @classmethod
    def named(cls, name: str, reduce: str | None = None) -> "Precision":
        """fp32 and fp64 throughout, or bf16 compute over fp32 masters; reduce defaults to the compute dtype."""
        compute = DTYPES[name]
        master = torch.float32 if compute is torch.bfloat16 else compute
        return cls(master, compute, DTYPES[reduce or name])


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or as it is in float64: for statistics and losses."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
