"""A sampler makes images of noise, step by step, by what a network finds in them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.data.colours import CHANNELS
from engine.layers.counter_random import BatchRows, normal
from engine.models.diffusion import Diffusion
from engine.result import SamplerName

FindNoise = Callable[[Tensor, Tensor], Tensor]
"""It maps noisy images [B, 3, S, S] and their time steps [B] to noise, whose first channels are those of the images."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """It takes so many steps, evenly spaced among those of the training: "ddpm" ancestral ones, with fresh noise at
    each (Ho et al. 2020, Algorithm 2), "ddim" none but the first (Song et al. 2021, eta of 0). All noise is hashes of
    the seed, the step, the image and the pixel, the same on every grid.
    """

    name: SamplerName
    steps: int
    seed: int

    def times(self, last: int) -> Iterator[tuple[int, int]]:
        """List the steps from the last to 0, each with the next."""
        return pairwise(round(last * place / self.steps) for place in range(self.steps, -1, -1))

    @torch.no_grad()
    def images(
        self,
        find: FindNoise,
        diffusion: Diffusion,
        images_B: Tensor,
        side: int,
        dtype: torch.dtype = torch.float32,
        *,
        done: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Make the images of these numbers: [B, 3, side, side], of -1 to 1. done: is called after each step."""
        shape = (CHANNELS, side, side)
        x = normal(BatchRows(self.seed, diffusion.steps, images_B), shape, dtype)
        for step, to in self.times(diffusion.steps):
            steps_B, to_B = (torch.full_like(images_B, time) for time in (step, to))
            noise = find(x, steps_B)[:, :CHANNELS].to(dtype)
            start = diffusion.start(x, noise, steps_B).clamp_(-1, 1)
            if self.name == "ddim":
                x = diffusion.implicit(x, start, steps_B, to_B)
            else:
                x = diffusion.ancestral(
                    x, start, normal(BatchRows(self.seed, to, images_B), shape, dtype), steps_B, to_B
                )
            done()
        return x


def as_bytes(images: Tensor) -> Tensor:
    """Give images of -1 to 1 as bytes."""
    return images.add(1).mul(127.5).round().clamp_(0, 255).to(torch.uint8)
