"""Diffusion of images into noise in many small steps (Ho et al. 2020; Nichol and Dhariwal 2021).

Steps are those of the papers: 1 .. T, and 0 is the image itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_OFFSET = 0.008
_LARGEST_BETA = 0.999


def linear_betas(steps: int) -> Tensor:
    """Return the variance that each step adds, [T] in float64: of 1,000 steps 0.0001 to 0.02 (Ho et al. 2020, 4).

    Of other numbers of steps, such that as little of the image is left (as Nichol and Dhariwal's code does).
    """
    scale = 1000 / steps
    return torch.linspace(1e-4 * scale, 0.02 * scale, steps, dtype=torch.float64)


def cosine_betas(steps: int) -> Tensor:
    """Return variances such that alpha-bar falls as a squared cosine (Nichol and Dhariwal 2021, Eq. 17)."""
    at_T = torch.arange(steps + 1, dtype=torch.float64) / steps
    alpha_bars = torch.cos((at_T + _OFFSET) / (1 + _OFFSET) * math.pi / 2) ** 2
    return (1 - alpha_bars[1:] / alpha_bars[:-1]).clamp(max=_LARGEST_BETA)


SCHEDULES: Mapping[str, Callable[[int], Tensor]] = MappingProxyType({"linear": linear_betas, "cosine": cosine_betas})


@dataclass(frozen=True, slots=True)
class Diffusion:
    """How much of an image is left at each step.

    Images and noise are [B, ...], of any precision; steps are [B], or one for all of them.
    """

    alpha_bars: Tensor
    """[T + 1] in float64, 1 at step 0"""

    @classmethod
    def of_betas(cls, betas: Tensor) -> "Diffusion":
        """Multiply what steps leave, by the variance [T] that each adds."""
        return cls(torch.cat([betas.new_ones(1), torch.cumprod(1 - betas, dim=0)]))

    @property
    def steps(self) -> int:
        """Number of steps, T."""
        return len(self.alpha_bars) - 1

    def noisy(self, start: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Draw from q(x_t | x_0) (Ho et al. 2020, Eq. 4)."""
        left = self._left(step, start)
        return left.sqrt().to(start) * start + (1 - left).sqrt().to(start) * noise

    def start(self, x: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return x_0 if that is the noise in x_t."""
        left = self._left(step, x)
        return (x - (1 - left).sqrt().to(x) * noise) / left.sqrt().to(x)

    def noise(self, x: Tensor, start: Tensor, step: Tensor) -> Tensor:
        """Return the noise in x_t, t > 0, if that is x_0."""
        left = self._left(step, x)
        return (x - left.sqrt().to(x) * start) / (1 - left).sqrt().to(x)

    def ancestral(self, x: Tensor, start: Tensor, fresh: Tensor, step: Tensor, to: Tensor) -> Tensor:
        """Draw x_to, an earlier step, from q(x_to | x_t, x_0) (Ho et al. 2020, Eq. 6 and 7). fresh: standard normal."""
        left, left_to = self._left(step, x), self._left(to, x)
        alpha = left / left_to
        of_start = left_to.sqrt() * (1 - alpha) / (1 - left)
        of_x = alpha.sqrt() * (1 - left_to) / (1 - left)
        deviation = ((1 - left_to) / (1 - left) * (1 - alpha)).sqrt()
        return of_start.to(x) * start + of_x.to(x) * x + deviation.to(x) * fresh

    def implicit(self, x: Tensor, start: Tensor, step: Tensor, to: Tensor) -> Tensor:
        """Go from x_t, t > 0, to a step before or after it with the same noise (DDIM: Song et al. 2021, Eq. 12)."""
        return self.noisy(start, self.noise(x, start, step), to)

    def _left(self, step: Tensor, x: Tensor) -> Tensor:
        left = _on_gpu(x.device, self.alpha_bars) if x.is_cuda else self.alpha_bars.to(x.device)
        return left[step].view(-1, *[1] * (x.dim() - 1))


@cache
def _on_gpu(device: torch.device, alpha_bars: Tensor) -> Tensor:
    """Copy them to a GPU once, as it waits then for what it was given before."""
    return alpha_bars.to(device)


class SimpleLoss(nn.Module):
    """Squared difference of the noise that a network finds and what was added (Ho et al. 2020, Eq. 14): a sum over all
    elements, divided, never below float32. found: [B, C, ...]; channels beyond the noise's are those of a learned
    variance, which this loss leaves out.
    """

    def forward(self, found: Tensor, noise: Tensor, divisor: float | Tensor = 1.0) -> Tensor:
        wide = torch.promote_types(found.dtype, torch.float32)
        return F.mse_loss(found[:, : noise.shape[1]].to(wide), noise.to(wide), reduction="sum") / divisor
