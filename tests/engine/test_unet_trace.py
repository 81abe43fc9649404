"""A U-Net's step is traced: its convolutions, whole networks of blocks that differ, and stages of them."""

from dataclasses import replace

import pytest
from dry_plans import dry_plan

from engine.batch import Batch
from engine.grid import Grid
from engine.models.flops import hardware_flops, repeated_flops
from engine.models.unet.config import UNetConfig
from engine.simulator.bandwidth import Bandwidths
from engine.simulator.events import Convolution, MatrixProduct
from engine.simulator.machine import MachineModel
from engine.tracing.step import trace

SMALL = UNetConfig("small", 64, multipliers=(1, 2, 2), depth=1, attention=(8,))
IMPROVED = replace(SMALL, name="improved", level_heads=4, resampling="convolution", channels_out=6)

MACHINE = MachineModel(
    name="some",
    peak_flops=300e9,
    empirical_peak=200e9,
    memory_bytes_per_s=1.5e12,
    device_memory=40e9,
    bandwidths=Bandwidths(4, 100e9, 100e9),
)


@pytest.mark.parametrize(
    ("model", "grid", "checkpoint"),
    [(SMALL, Grid(), 0), (SMALL, Grid(2, 2, 2, 1), 1), (IMPROVED, Grid(), 1), (IMPROVED, Grid(2, 2, 2, 1), 0)],
    ids=lambda value: value.name if isinstance(value, UNetConfig) else str(value),
)
def test_products_convolutions_and_attention_have_the_flops_of_the_closed_form(
    model: UNetConfig, grid: Grid, checkpoint: int
) -> None:
    batch = Batch(8, 2)
    found = [trace(*dry_plan(model, grid, batch, checkpoint=checkpoint), rank) for rank in {0, grid.size - 1}]
    expected = hardware_flops(model, batch.sequences, recompute=checkpoint > 0)
    expected += repeated_flops(model, batch.sequences, grid, recompute=checkpoint > 0)
    assert [grid.size * one.flops for one in found] == len(found) * [expected]


def test_a_convolution_takes_the_time_of_its_implicit_gemm_and_of_its_own_bytes() -> None:
    """A weight of 64 x 64 x 3 x 3 on 2 images of 8 x 8 pixels, forward and back, in 2 bytes."""
    model = replace(SMALL, multipliers=(1,), depth=1, attention=(8,), image=8)
    found = [
        event for event in trace(*dry_plan(model, Grid(), Batch(2), checkpoint=0)) if isinstance(event, Convolution)
    ]
    rows, features, window = 2 * 8 * 8, 64, 9 * 64
    num_bytes = 2 * (2 * rows * features + features * window)
    expected = [
        Convolution(rows, features, window, "NT", num_bytes),
        Convolution(rows, window, features, "NN", num_bytes),
        Convolution(features, window, rows, "TN", num_bytes),
    ]
    for one in expected:
        assert found.count(one) == found.count(expected[0]) > 1
        product = MatrixProduct(one.m, one.n, one.k, one.mode, 2)
        more_s = (num_bytes - product.num_bytes) / MACHINE.memory_bytes_per_s
        assert MACHINE.compute_s(one) == pytest.approx(MACHINE.compute_s(product) + more_s)
