"""Which sequences a step trains on: a pure function of (seed, step, place in the global batch).

Nothing here knows the grid, so every grid of the same global batch sees the same samples, and a resumed run goes on
where it stopped.
"""

import numpy as np

from engine.data.dataset import Dataset
from engine.data.shuffle import Ints


def batch(
    dataset: Dataset, *, seed: int, step: int, batch_size: int, rows: range, sequence_length: int
) -> tuple[Ints, Ints]:
    """tokens_BS and targets_BS of the given rows of one step's global batch; targets are the next tokens.

    rows: a rank's share of it, or any part of that (a micro-batch). Contiguous int64 arrays that belong
    to the caller, so `torch.from_numpy` takes them without a copy.
    """
    positions = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64) + step * batch_size
    window = dataset.read(seed, positions, sequence_length)
    return np.ascontiguousarray(window[:, :-1]), np.ascontiguousarray(window[:, 1:])
