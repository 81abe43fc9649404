"""A U-Net's step is traced: its convolutions, whole networks of blocks that differ, and stages of them."""

from dataclasses import replace
from functools import partial

import pytest
from dry_plans import dry_plan

from engine.batch import Batch
from engine.grid import Grid
from engine.models.flops import hardware_flops, repeated_flops
from engine.models.unet.config import UNetConfig
from engine.overlap.flags import Overlap
from engine.pipeline.registry import PipelineOptions, ScheduleName
from engine.simulator.bandwidth import Bandwidths
from engine.simulator.events import Convolution, MatrixProduct
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import simulate
from engine.tracing.predict import trace_network
from engine.tracing.stage_times import time_tasks
from engine.tracing.stages import trace_stages
from engine.tracing.step import trace

SMALL = UNetConfig("small", 64, multipliers=(1, 1), depth=1, attention=(16,), head_channels=16)
"""No group of channels straddles ranks, which add up the statistics of those that do by products."""
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
    expected += repeated_flops(model, batch.sequences, grid, recomputed=model.layers if checkpoint else 0)
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


def test_a_network_of_blocks_that_differ_is_traced_whole() -> None:
    found = trace_network(*dry_plan(SMALL, Grid(z=2), Batch(4, 1), overlap=Overlap.parse("all")))
    assert found.whole
    assert found.drawn == SMALL.layers
    assert found.on(MACHINE).time_s > 0


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
def test_each_stage_of_blocks_that_differ_is_timed_as_it_is_cut(schedule: ScheduleName) -> None:
    """Both stages together compute what one rank does that has all of the network."""
    passes, grid = 4, Grid(x=2, pipe=2)
    training, _ = dry_plan(SMALL, grid, Batch(passes, 1))
    whole = simulate(trace(replace(training, batch=Batch(passes, 1)), Grid(x=2)), MACHINE)
    options = PipelineOptions(schedule, chunks=2 if schedule == "interleaved" else None)
    staged = trace_stages(replace(training, pipeline=options), grid)
    (times,) = [of.times(partial(time_tasks, machine=MACHINE)) for of in staged.traces.values()]
    worked_s = passes * sum(sum(stage.tasks_s.values()) for stage in times)
    assert worked_s == pytest.approx(whole.phases_s["forward"] + whole.phases_s["backward"], rel=0.05)
    assert staged.on(MACHINE).time_s > passes * max(sum(stage.tasks_s.values()) for stage in times)


def test_messages_between_stages_have_what_crosses_their_own_boundary() -> None:
    """Before blocks 0 and 2: the stream, the embedding, and all that was left and not yet taken, in 2 bytes. Block 2
    leaves what it takes itself, which comes once.
    """
    training, grid = dry_plan(SMALL, Grid(x=2, y=2, pipe=2), Batch(4, 2))
    staged = trace_stages(replace(training, pipeline=PipelineOptions("1f1b", stages=f"2,{SMALL.layers - 2}")), grid)
    first, between, _ = staged.message_bytes[1]
    full, embedding = 64 * 32 * 32, 256
    half = 64 * 16 * 16
    assert first == 2 * 2 * (full + embedding) / 4
    assert between == 2 * 2 * (half + embedding + 2 * full) / 4
