"""A step of any one rank at full size, alone: every collective is issued, with the bytes of the closed form."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from closed_form import closed_form

from engine.batch import Batch
from engine.bench.dry import dry_run
from engine.cli.main import main
from engine.data.dataset import Synthetic
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL, Overlap
from engine.training.config import OptimConfig, TrainConfig
from engine.training.plan import Plan

NOTHING = Overlap()
EVERYTHING = replace(ALL, cache=0)
CACHED_BLOCKS = 2


def plan(model: Architecture, grid: Grid, batch: Batch, *, checkpoint: bool, overlap: Overlap, clip: float) -> Plan:
    config = TrainConfig(
        model=ModelChoice(),
        grid=grid,
        batch=batch,
        data="synthetic",
        out=Path(),
        precision="bf16",
        checkpoint_activations=checkpoint,
        overlap=overlap,
        optim=OptimConfig(clip=clip),
    )
    return Plan(config, model, grid, Synthetic(model.vocabulary))


def few_layers(name: str) -> Architecture:
    """At full width."""
    return replace(lookup(name), layers=3)  # type: ignore[type-var]


@pytest.mark.parametrize("overlap", [NOTHING, EVERYTHING], ids=str)
@pytest.mark.parametrize(
    ("model", "grid", "batch", "checkpoint"),
    [
        (lookup("gpt-320b"), Grid(8, 4, 16, 64), Batch(2048, 2), True),
        (few_layers("gpt-320b"), Grid(8, 4, 16, 64), Batch(8192, 2), True),
        (few_layers("gpt-320b"), Grid(4, 8, 2, 512), Batch(4096, 4), False),
        (few_layers("llama-3.1-405b"), Grid(8, 4, 16, 32), Batch(1024, 1), True),
        (few_layers("llama-3.1-8b"), Grid(1, 1, 1024, 1), Batch(1024), False),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else str(value),
)
def test_what_a_rank_sends_equals_the_closed_form(
    model: Architecture, grid: Grid, batch: Batch, checkpoint: bool, overlap: Overlap
) -> None:
    rank = 12345 % grid.size
    found = dry_run(plan(model, grid, batch, checkpoint=checkpoint, overlap=overlap, clip=1.0), rank)
    expected = closed_form(model, batch, grid, precision="bf16", checkpoint=checkpoint)
    for axis in "xyz":  # the gradient's norm
        if grid[Axis(axis)] > 1:
            expected.add("all_reduce", axis, 1, size=4)
    if overlap.data and grid.data > 1:  # the same bytes in buckets, whose number is the schedule's own affair
        buckets = next(sent for sent in found.collectives if (sent.kind, sent.axis) == ("all_reduce", "data"))
        assert buckets.calls >= expected.calls["all_reduce", "data"]
        expected.calls["all_reduce", "data"] = buckets.calls
    assert {(sent.kind, sent.axis): sent.calls for sent in found.collectives} == expected.calls
    assert {(sent.kind, sent.axis): sent.bytes for sent in found.collectives} == expected.num_bytes
    assert found.parameters_per_rank == sum(p.local_numel(grid) for p in model.placements().values())


def test_cached_gathers_are_sent_once_a_micro_batch_and_without_clipping_nothing_else_changes() -> None:
    model, grid, batch = few_layers("gpt-320b"), Grid(2, 2, 8, 2), Batch(64, 2)
    cached = replace(EVERYTHING, cache=CACHED_BLOCKS)
    found = dry_run(plan(model, grid, batch, checkpoint=True, overlap=cached, clip=0.0), 7)
    expected = closed_form(model, batch, grid, precision="bf16", checkpoint=True)
    gathers = next(sent for sent in found.collectives if (sent.kind, sent.axis) == ("all_gather", "z"))
    assert gathers.calls == expected.calls["all_gather", "z"] - 2 * 4 * CACHED_BLOCKS


def test_the_command_prints_what_one_rank_sends_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "dry", "--model", "llama-test", "--grid", "2x1x2x2", "--rank", "3", "--batch-size", "16"]
    found = {}
    for options in ((), ("--precision", "fp32"), ("--micro-batch", "1"), ("--checkpoint-activations",)):
        assert main([*command, *options]) == 0
        found[options] = json.loads(capsys.readouterr().out)
    plain = found[()]
    assert (plain["model"], plain["grid"], plain["rank"]) == ("llama-test", "2x1x2x2", 3)
    assert plain["coords"] == {"x": 1, "y": 0, "z": 1, "data": 0}
    assert 0 < plain["peak_memory_bytes"] < 2**34

    def gathered(told: dict[str, Any]) -> dict[str, int]:
        return next(sent for sent in told["collectives"] if (sent["kind"], sent["axis"]) == ("all_gather", "z"))

    assert gathered(found["--precision", "fp32"])["bytes"] == 2 * gathered(plain)["bytes"]
    assert gathered(found["--micro-batch", "1"])["calls"] == 4 * gathered(plain)["calls"]
    assert gathered(found["--checkpoint-activations",])["calls"] > gathered(plain)["calls"]
    four = found["--micro-batch", "1"]
    assert four["micro_batches"] == 4
    assert four["step_s_per_micro_batch"] == pytest.approx(four["step_s"] / 4)


def test_a_rank_beyond_the_grid_is_refused() -> None:
    small = plan(lookup("gpt-test"), Grid(2), Batch(8), checkpoint=False, overlap=NOTHING, clip=1.0)
    with pytest.raises(UsageError, match="Grid 2x1x1x1 has ranks 0 to 1, but --rank 2 was given"):
        dry_run(small, 2)
