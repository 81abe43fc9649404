"""Samples of a step: a pure function of seed, step and place in the global batch.

Nothing here knows the grid, so every grid of the same global batch sees the same samples, and a resumed run goes on
where it stopped.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.data.dataset import Dataset
from engine.data.shuffle import Arrays, Ints


def batch(
    dataset: Dataset, make: Callable[[Arrays, int, Ints], Arrays], *, seed: int, step: int, batch_size: int, rows: range
) -> Arrays:
    """Make the given rows of one step's global batch, as a task makes them of samples, the seed and their positions.

    rows: a rank's share of it, or any part of that (a micro-batch).
    """
    positions = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) + step * batch_size
    return make(dataset.read(seed, positions), seed, positions)


def to_device(device: torch.device, batch: Arrays) -> dict[str, Tensor]:
    """Copy a batch to the device without the host waiting for that."""
    host = {name: torch.from_numpy(array) for name, array in batch.items()}
    pinned = {name: tensor.pin_memory() for name, tensor in host.items()} if device.type == "cuda" else host
    return {name: tensor.to(device, non_blocking=True) for name, tensor in pinned.items()}
