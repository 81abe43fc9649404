"""Denoising, the task of diffusion models: the noise in images is to be found (Ho et al. 2020, Algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from engine.data import CHANNELS
from engine.data.dataset import Images
from engine.errors import UsageError, nearest
from engine.models.tasks import scale_pixels

if TYPE_CHECKING:
    from torch import Tensor, nn

    from engine.data.shuffle import Arrays, Ints
    from engine.layers.counter_random import BatchRows
    from engine.models.diffusion import Diffusion

NoiseSchedule = Literal["linear", "cosine"]
FEWEST_LINEAR = 21
"""In fewer steps a linear schedule would end with one that adds 0.02 * 1000 / steps >= 1, more than all variance."""
_NUMBER_BITS = 44
"""Bits of the number of a noise, such that the number of an element of any image fits into 64."""


@dataclass(frozen=True, slots=True)
class Denoising:
    """Task whose batch has pixels, bytes [B, C, Y, X], and of each image the number [B] of its noise, from which its
    time step follows, too. Raises UsageError for a schedule that there isn't, or that so few steps can't have.
    """

    data: Images
    schedule: NoiseSchedule
    """How the noise's variance grows."""
    steps: int
    """Steps in which an image becomes noise."""

    def __post_init__(self) -> None:
        if self.schedule not in (known := get_args(NoiseSchedule)):
            raise UsageError(f"No schedule of noise is called {self.schedule!r}: {nearest(self.schedule, known)}")
        if self.schedule == "linear" and self.steps < FEWEST_LINEAR:
            raise UsageError(
                f"In {self.steps} diffusion steps a linear schedule adds more noise than there can be: take "
                f"{FEWEST_LINEAR} or more, or the cosine schedule."
            )

    @property
    def row_bytes(self) -> int:
        return CHANNELS * self.data.side**2 + 8

    def batch(self, samples: "Arrays", seed: int, positions: "Ints") -> "Arrays":
        """Draw the number of each row's noise, a hash of the seed and the row's position in the training."""
        import numpy as np

        from engine.data.shuffle import key, mix

        numbers = mix(mix(key(seed, 4) ^ positions.astype(np.uint64))) >> np.uint64(64 - _NUMBER_BITS)
        return {"pixels": samples["pixels"], "noise": numbers.astype(np.int64)}

    def criterion(self) -> "nn.Module":
        from engine.models.diffusion import SimpleLoss  # loads torch

        return SimpleLoss()

    def inputs(self, batch: "Mapping[str, Tensor]") -> "tuple[Tensor, ...]":
        """Return noisy images, in float32, and their time steps."""
        from engine.layers.counter_random import time_steps

        steps = time_steps(_rows(batch), self.steps)
        return self.diffusion.noisy(scale_pixels(batch["pixels"]), _noise(batch), steps), steps

    def valid(self, batch: "Mapping[str, Tensor]") -> int:
        return batch["pixels"].numel()

    def loss(
        self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]", divisor: "float | Tensor"
    ) -> "Tensor":
        """Compare the noise that was found with what was added: it is made again, as the last stage of a pipeline has
        to, for nothing of a batch goes from its inputs to its loss but what the network gives.
        """
        return criterion(output, _noise(batch), divisor)

    def right(self, criterion: "nn.Module", output: "Tensor", batch: "Mapping[str, Tensor]") -> None:
        """Count nothing: noise is found more or less well."""

    @property
    def diffusion(self) -> "Diffusion":
        """How much of an image is left at each step."""
        return _diffusion(self.schedule, self.steps)


@cache
def _diffusion(schedule: NoiseSchedule, steps: int) -> "Diffusion":
    from engine.models.diffusion import SCHEDULES, Diffusion

    return Diffusion.of_betas(SCHEDULES[schedule](steps))


def _rows(batch: "Mapping[str, Tensor]") -> "BatchRows":
    from engine.layers.counter_random import BatchRows

    return BatchRows(0, 0, batch["noise"])


def _noise(batch: "Mapping[str, Tensor]") -> "Tensor":
    from engine.layers.counter_random import normal

    return normal(_rows(batch), batch["pixels"].shape[1:])
