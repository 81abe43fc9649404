"""`bench flops`: a real step's flops by torch's counter are those of the formula, and a wrong formula shows."""

from pathlib import Path

import pytest
import torch
from real_ranks import run_processes
from torch.utils.flop_counter import FlopCounterMode

from engine.bench import flops as counting
from engine.bench.flops import Flops
from engine.bench.frame import run
from engine.bench.world import World
from engine.comm.funnel import Comm
from engine.comm.launch import from_environment
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops, step_flops
from engine.result import schema
from engine.result.schema import Result
from engine.result.schema.bench import CountedStep
from engine.timeouts import Timeouts
from engine.training_record import PrecisionName

NAME = "gpt-test"


def count(out: Path, model: str = NAME, sequences: int = 2, precision: PrecisionName = "fp32") -> Result:
    alone, asked = from_environment({}), Flops(lookup(model), sequences, precision)
    return run(asked, alone, device="cpu", timeouts=Timeouts(), labels={}, out=out / "result.json")


@pytest.mark.parametrize(
    ("model", "precision"), [(NAME, "fp32"), (NAME, "bf16"), ("llama-test", "fp64"), ("vit-test", "fp32")]
)
def test_a_step_of_the_engine_has_the_flops_of_the_formula_to_the_last(
    model: str, precision: PrecisionName, tmp_path: Path
) -> None:
    found = count(tmp_path, model, precision=precision)
    assert schema.read(tmp_path / "result.json") == found
    assert (found.kind, found.status, found.grid, found.dtype) == ("flops", "ok", "1x1x1x1", precision)
    assert found.model is not None
    assert found.model.name == model
    expected = [hardware_flops(lookup(model), 2, recompute=recompute) for recompute in (False, True)]
    assert [(one.recomputed, one.counted, one.formula) for one in found.counted_flops] == [
        ("nothing", expected[0], expected[0]),
        ("blocks", expected[1], expected[1]),
    ]


def test_a_formula_that_is_off_by_1_percent_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = [one.counted for one in count(tmp_path).counted_flops]
    monkeypatch.setattr(
        "engine.training_record.step_flops", lambda *given, **named: step_flops(*given, **named) * 101 // 100
    )
    found = count(tmp_path / "off").counted_flops
    assert [one.counted for one in found] == right
    assert [one.formula for one in found] == [flops * 101 // 100 for flops in right]


def test_products_that_are_added_up_in_place_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SUMS", {})
    assert all(one.counted < one.formula for one in count(tmp_path).counted_flops)


def step_of_two(comm: Comm) -> CountedStep:
    return Flops(lookup(NAME), 1, "fp32").step(World(comm), "blocks")


def test_sums_in_a_wider_format_than_their_factors_count() -> None:
    """As a GPU adds up weight gradients."""
    a, b = (torch.empty(*size, dtype=torch.bfloat16, device="meta") for size in ((4, 8), (8, 16)))
    out = torch.empty(4, 16, device="meta")
    with FlopCounterMode(display=False, custom_mapping=counting.SUMS) as counter:
        torch.addmm(out, a, b, out_dtype=torch.float32, out=out)
        torch.mm(a, b, out_dtype=torch.float32, out=out)
    assert counter.get_total_flops() == 2 * 2 * 4 * 8 * 16


@pytest.mark.weekly
def test_each_rank_of_several_has_its_share() -> None:
    found = run_processes(Grid.parse("1x1x1x2"), step_of_two)
    assert found == 2 * [CountedStep(recomputed="blocks", counted=(flops := 33_554_432), formula=flops)]


def test_no_sequence_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--micro-batch"):
        count(tmp_path, sequences=0)
    assert not list(tmp_path.iterdir())
