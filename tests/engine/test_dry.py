"""A step of any one rank at full size, alone: every collective is issued, with the bytes of the closed form."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from closed_form import closed_form
from dry_plans import dry_plan, few_layers

from engine.batch import Batch
from engine.cli.main import main
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops, repeated_flops
from engine.overlap.flags import ALL, Overlap
from engine.simulator import events
from engine.tracing.dry import dry_run

NOTHING = Overlap()
EVERYTHING = replace(ALL, cache=0)
CACHED_BLOCKS = 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "grid", "batch", "checkpoint", "overlap"),
    [
        (lookup("gpt-320b"), Grid(8, 1, 16, 256), Batch(4096, 1), True, EVERYTHING),
        (few_layers("gpt-320b"), Grid(8, 4, 16, 64), Batch(8192, 2), True, NOTHING),
        (few_layers("gpt-320b"), Grid(8, 4, 16, 64), Batch(8192, 2), True, EVERYTHING),
        (few_layers("gpt-320b"), Grid(4, 8, 2, 512), Batch(4096, 4), False, EVERYTHING),
        (few_layers("llama-3.1-405b"), Grid(8, 4, 16, 32), Batch(1024, 1), True, EVERYTHING),
        (few_layers("llama-3.1-8b"), Grid(1, 1, 1024, 1), Batch(1024), False, NOTHING),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else str(value),
)
def test_what_a_rank_computes_and_sends_equals_the_closed_forms(
    model: Architecture, grid: Grid, batch: Batch, checkpoint: bool, overlap: Overlap
) -> None:
    rank = 12345 % grid.size
    found, _ = dry_run(*dry_plan(model, grid, batch, checkpoint=checkpoint, overlap=overlap), rank)
    recompute, sequences = checkpoint, batch.sequences
    flops = hardware_flops(model, sequences, recompute=recompute)
    assert grid.size * found.flops == flops + repeated_flops(
        model, sequences, grid, recomputed=model.layers * recompute
    )
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
    found, _ = dry_run(*dry_plan(model, grid, batch, overlap=cached, clip=0.0), 7)
    expected = closed_form(model, batch, grid, precision="bf16", checkpoint=True)
    gathers = next(sent for sent in found.collectives if (sent.kind, sent.axis) == ("all_gather", "z"))
    assert gathers.calls == expected.calls["all_gather", "z"] - 2 * 4 * CACHED_BLOCKS


COMMAND = ["bench", "dry", "--model", "llama-test", "--grid", "2x1x2x2", "--rank", "3", "--batch-size", "16"]


def test_the_command_prints_what_one_rank_sends_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for options in ((), ("--precision", "fp32"), ("--micro-batch", "1"), ("--checkpoint-activations",)):
        assert main([*COMMAND, *options, "--json"]) == 0
        found[options] = json.loads(capsys.readouterr().out)
    plain = found[()]
    assert (plain["model"], plain["grid"], plain["rank"]) == ("llama-test", "2x1x2x2", 3)
    assert plain["coords"] == {"x": 1, "y": 0, "z": 1, "data": 0, "pipe": 0}
    assert 0 < plain["peak_memory_bytes"] < 2**34

    def gathered(told: dict[str, Any]) -> dict[str, int]:
        return next(sent for sent in told["collectives"] if (sent["kind"], sent["axis"]) == ("all_gather", "z"))

    assert gathered(found["--precision", "fp32"])["bytes"] == 2 * gathered(plain)["bytes"]
    assert gathered(found["--micro-batch", "1"])["calls"] == 4 * gathered(plain)["calls"]
    assert gathered(found["--checkpoint-activations",])["calls"] > gathered(plain)["calls"]
    assert found["--micro-batch", "1"]["micro_batches"] == 4


def test_the_command_writes_a_trace_and_says_that_ranks_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    assert main([*COMMAND, "--trace", str(file), "--agree", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "agree" in err
    assert events.read(file).flops == json.loads(out)["flops"]


def test_the_command_takes_stages_and_their_schedule_as_train_does(capsys: pytest.CaptureFixture[str]) -> None:
    """GPipe keeps all micro-batches, 1F1B on the last stage one; both send the same."""

    def found(*words: str) -> dict[str, Any]:
        small = ["--model", "gpt-test", "--batch-size", "4", "--micro-batch", "1", "--rank", "1", "--json"]
        assert main(["bench", "dry", *small, *words]) == 0
        run: dict[str, Any] = json.loads(capsys.readouterr().out)
        return {name: run[name] for name in ("grid", "step_bytes", "collectives")}

    stages = ["--grid", "1x1x1x1", "--pipe", "2"]
    few, all_ = found(*stages, "--schedule", "1f1b"), found(*stages, "--schedule", "gpipe")
    assert few == found("--grid", "1x1x1x1p2", "--schedule", "1f1b")
    assert few["collectives"] == all_["collectives"]
    assert few["step_bytes"] < all_["step_bytes"]


def test_a_rank_beyond_the_grid_is_refused() -> None:
    small = dry_plan(lookup("gpt-test"), Grid(2), Batch(8), checkpoint=False)
    with pytest.raises(UsageError, match=r"2x1x1x1\D+0 to 1,.*--rank 2"):
        dry_run(*small, 2)


def test_a_rank_holds_less_with_the_offload_and_sends_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "dry", "--model", "gpt-5b", "--layers", "2", "--grid", "2x1x2x2", "--batch-size", "4", "--json"]
    found = []
    for offload in ([], ["--offload"]):
        assert main([*words, *offload]) == 0
        found.append(json.loads(capsys.readouterr().out))
    here, on_host = found
    assert here["collectives"] == on_host["collectives"]
    assert on_host["state_bytes"] < 0.5 * here["state_bytes"]
