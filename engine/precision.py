"""In which number formats a network is stored, computed and reduced."""

from dataclasses import dataclass

import torch

from engine.errors import UsageError

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Precision:
    """master: the stored shards, their gradients and the optimizer. compute: gathered weights and activations.
    reduce: weight gradients while they are summed over z. Norm statistics and losses are never below fp32.
    """

    master: torch.dtype
    compute: torch.dtype
    reduce: torch.dtype

    @classmethod
    def named(cls, name: str, reduce: str | None = None) -> "Precision":
        """fp32 and fp64 throughout, or bf16 compute over fp32 masters; reduce defaults to the compute dtype."""
        for given in (name, reduce or name):
            if given not in DTYPES:
                raise UsageError(f"A precision is one of {', '.join(DTYPES)}, but {given!r} was given.")
        compute = DTYPES[name]
        master = torch.float32 if compute is torch.bfloat16 else compute
        chosen = DTYPES[reduce or name]
        if chosen not in (compute, master):
            raise UsageError(
                f"With precision {name} gradients reduce in {name}{' or fp32' if name == 'bf16' else ''}, "
                f"but {reduce} was given."
            )
        return cls(master, compute, chosen)
