"""Each position turns each pair of a head's features by an angle (Su et al. 2021)."""

import math
from typing import Protocol

import torch
from torch import Tensor

from engine.models.llama.config import KEPT_BELOW, SLOWED_ABOVE, UNSCALED_SEQUENCE


class Rotary(Protocol):
    """Rotary positions need these. rotary_features: the first ones of each head, which are turned; rope_theta,
    rope_scaling: see LlamaConfig.
    """

    @property
    def rotary_features(self) -> int: ...

    @property
    def rope_theta(self) -> float: ...

    @property
    def rope_scaling(self) -> float: ...


def rotary_frequencies(shape: Rotary, device: torch.device) -> Tensor:
    """Give radians a position for each pair of features of a head: [P] in float64."""
    turned = shape.rotary_features
    exponents_P = torch.arange(0, turned, 2, dtype=torch.float64, device=device) / turned
    frequencies_P = shape.rope_theta**-exponents_P
    if shape.rope_scaling == 1:
        return frequencies_P
    wavelengths_P = 2 * math.pi / frequencies_P
    kept_P = ((UNSCALED_SEQUENCE / wavelengths_P - 1) / (SLOWED_ABOVE / KEPT_BELOW - 1)).clamp(0, 1)
    return frequencies_P * (kept_P + (1 - kept_P) / shape.rope_scaling)


def rotation(shape: Rotary, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Give cosine and sine of the angle by which each position turns each pair: [2, S, P], in float32 at least."""
    positions_S = torch.arange(length, dtype=torch.float64, device=device)
    angles_SP = positions_S.unsqueeze(1) * rotary_frequencies(shape, device)
    return torch.stack([angles_SP.cos(), angles_SP.sin()]).to(torch.promote_types(dtype, torch.float32))
