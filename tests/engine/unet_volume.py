"""Bytes that one rank sends in a training step of a U-Net, from the shapes alone: par4d's equations with channels for
features and pixels for rows, and what is around them.
"""

from closed_form import Volume

from engine.batch import Batch
from engine.grid import Grid
from engine.models.unet.config import UNetConfig

GROUPS = 32


def unet_volume(model: UNetConfig, batch: Batch, grid: Grid, *, precision: str, checkpoint: bool) -> Volume:
    """Count a step without cached gathers that sums over data at its end, its reported loss included."""
    volume = Volume()
    compute = {"fp64": 8, "fp32": 4, "bf16": 2}[precision]
    wide = max(compute, 4)
    x, y, z = grid.x, grid.y, grid.z
    share = batch.per_rank(grid)
    images = batch.micro or share
    again = 2 if checkpoint else 1
    base = model.base

    def weight(numel: float, gathers: int = 1, split: int = x * y) -> None:
        volume.add("all_gather", "z", numel / (split * z), size=compute, times=gathers)
        volume.add("reduce_scatter", "z", numel / split, size=compute)

    def normal(
        n: int, k: int, rows_in: int, rows_out: int, taps: int = 1, *, gathers: int = again, sums: int = again
    ) -> None:
        weight(n * k * taps, gathers)
        volume.add("all_reduce", "y", images * rows_out * n / x, size=compute, times=sums)
        volume.add("all_reduce", "x", images * rows_in * k / y, size=compute)

    def transposed(n: int, k: int, rows: int, taps: int = 1, *, gathers: int = again, sums: int = again) -> None:
        weight(n * k * taps, gathers)
        volume.add("all_reduce", "x", images * rows * n / y, size=compute, times=sums)
        volume.add("all_reduce", "y", images * rows * k / x, size=compute)

    def norm(parts: tuple[int, ...], axis: str, times: int = again) -> None:
        ranks, channels = (x if axis == "x" else y), sum(parts)
        owners: dict[int, set[int]] = {}
        start = 0
        for part in parts:
            for channel in range(part):
                owners.setdefault((start + channel) * GROUPS // channels, set()).add(channel * ranks // part)
            start += part
        shared = sum(len(some) > 1 for some in owners.values())
        if shared:
            volume.add("all_gather", axis, 2 * images * shared, size=wide, times=times)
            volume.add("all_reduce", axis, 2 * images * shared, size=wide)

    def redistribute(n: int, rows: int, times: int) -> None:
        volume.add("all_gather", "x", images * rows * n / x, size=compute, times=times)
        volume.add("all_gather", "y", images * rows * n / y, size=compute)

    def skip(n: int, k: int, rows: int) -> None:
        """Its sum over x is that of the convolution which it joins."""
        weight(n * k, again)
        volume.add("reduce_scatter", "y", images * rows * n / x, size=compute, times=again)
        volume.add("all_gather", "y", images * rows * n / (x * y), size=compute)
        volume.add("all_reduce", "x", images * rows * k / y, size=compute)

    for _ in range(share // images):
        weight(4 * base * base)  # of waves, of which no gradient is made
        volume.add("all_reduce", "y", images * 4 * base / x, size=compute)
        transposed(4 * base, 4 * base, 1, gathers=1, sums=1)
        weight(27 * base, split=y)  # conv_in, the same on all of x
        for step in model.steps:
            n, k, before, after = step.channels, step.joined, step.side**2, step.side_out**2
            last = again if step.attends else 1  # sums of what ends a step aren't repeated, as nothing needs them
            if step.convolves:
                normal(n, n, before if step.resampling == "half" else after, after, 9, sums=last)
                redistribute(n, after, last)
            else:
                norm(step.parts or (k,), "y")
                normal(n, k, after, after, 9)
                normal(2 * n, 4 * base, 1, 1)
                norm((n,), "x")
                if k != n:
                    skip(n, k, after)
                transposed(n, n, after, 9, sums=last)
            if step.attends:
                norm((n,), "y")
                normal(3 * n, n, after, after)
                transposed(n, n, after, sums=1)
        norm((base * model.multipliers[0],), "y", 1)
        weight(model.channels_out * base * model.multipliers[0] * 9, split=y)
        volume.add("all_reduce", "y", images * model.image**2 * model.channels_out, size=compute)  # what is given

    placements = model.placements().values()
    volume.add("all_reduce", "z", sum(p.local_numel(grid) for p in placements if not p.sharded), size=wide)
    volume.add("all_reduce", "data", sum(p.local_numel(grid) for p in placements), size=compute)
    for axis in ("z", "data"):
        volume.add("all_reduce", axis, 1, size=8)  # the reported loss
    return volume.on(grid)
