"""In which format gradients are summed: a ring of many ranks errs in bf16, and the rule is the same everywhere."""

from dataclasses import replace
from functools import reduce

import pytest
import torch
from torch import Tensor, nn
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.footprint.memory import Footprint
from engine.grid import Axis, Grid
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.planning.equations import Costs
from engine.precision import Precision
from engine.reduce_dtype import FROM_RANKS, reduce_dtype
from engine.simulator.bandwidth import agnostic, papers_links
from engine.training.checks import checked, notices
from engine.training.config import TrainConfig
from engine.training_record import OptimConfig, Training

INDEPENDENT = {8: 0.0041, 64: 0.0099, 256: 0.019, 1024: 0.038}
"""Relative errors of bf16, as the rule's own file tells them."""
AGREEING = {8: 0.0031, 64: 0.013, 256: 0.07, 1024: 0.60}


def _parts(ranks: int, *, agreeing: bool, count: int = 4096) -> Tensor:
    """Draw the parts of each rank [ranks, count]."""
    source = torch.Generator().manual_seed(0)
    parts = torch.randn(ranks, count, generator=source)
    return parts / 10 + torch.randn(count, generator=source) if agreeing else parts


def _ring(parts: Tensor) -> Tensor:
    """Sum rank by rank, each partial sum rounded to the format in which it travels."""
    return reduce(torch.add, parts)


def _error(found: Tensor, parts: Tensor) -> float:
    exact = parts.double().sum(0)
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("agreeing", [False, True], ids=["independent", "agreeing"])
def test_a_ring_in_bf16_errs_as_the_rule_says_and_one_in_fp32_by_nothing(agreeing: bool) -> None:
    for ranks, expected in (AGREEING if agreeing else INDEPENDENT).items():
        parts = _parts(ranks, agreeing=agreeing)
        assert _error(_ring(parts.bfloat16()), parts) == pytest.approx(expected, rel=0.1), ranks
        assert _error(_ring(parts), parts) < 1e-6


def _summed_over(grid: Grid, given: str | None) -> float:
    """Return the error of a parameter's gradient after a step."""
    parts = _parts(grid.size, agreeing=True, count=64)

    def work(comm: Comm) -> Tensor:
        parameter = nn.Parameter(torch.zeros(64))
        schedule = WeightSchedule(comm, [], [parameter], Precision.parse("bf16", given), Overlap())
        schedule.start_step()
        assert parameter.grad is not None
        parameter.grad += parts[comm.rank]
        schedule.finish_step()
        return parameter.grad

    return _error(run_ranks(grid, work, add=_ring)[0], parts)


def test_over_64_data_ranks_a_steps_gradients_are_those_of_float64_unless_bf16_is_asked_for() -> None:
    many = Grid(data=FROM_RANKS)
    assert _summed_over(many, None) < 1e-6
    assert _summed_over(many, "bf16") > 0.01
    assert 1e-3 < _summed_over(Grid(data=FROM_RANKS // 8), None) < 0.01


def test_each_axis_goes_by_its_own_ranks_and_what_is_given_holds_everywhere() -> None:
    precision = Precision.parse("bf16")
    assert [precision.reduce(ranks) for ranks in (1, 63, 64)] == [torch.bfloat16, torch.bfloat16, torch.float32]
    for z, data in ((8, 64), (64, 8)):
        assert Training(lookup("gpt-5b"), Batch(512), precision="bf16").reduce_dtypes(Grid(1, 1, z, data)) == {
            Axis.Z: "fp32" if z == 64 else "bf16",
            Axis.DATA: "fp32" if data == 64 else "bf16",
        }
    assert reduce_dtype("bf16", 1024, "bf16") == "bf16"
    assert reduce_dtype("bf16", 1024, "compute") == "bf16"
    assert reduce_dtype("bf16", 1, "fp32") == "fp32"
    assert reduce_dtype("fp64", 1024) == "fp64"
    assert [reduce_dtype("fp16", ranks) for ranks in (1, 2, 1024)] == ["fp16", "fp32", "fp32"]
    assert reduce_dtype("fp16", 1024, "fp16") == "fp16"


def test_the_planner_sends_twice_the_bytes_over_64_ranks_and_keeps_no_copies_of_them() -> None:
    model, grid = lookup("gpt-5b"), Grid(1, 1, 8, 64)
    asked, narrow = (
        Training(model, Batch(512), precision="bf16"),
        Training(model, Batch(512), precision="bf16", reduce_dtype="bf16"),
    )
    assert asked.reduce_dtypes(grid) == {Axis.Z: "bf16", Axis.DATA: "fp32"}
    links = papers_links(agnostic())(grid)
    for wide, usual in (
        (Costs(asked).equations(grid, links), Costs(narrow).equations(grid, links)),
        (Costs(asked).as_run(grid, links, 1), Costs(narrow).as_run(grid, links, 1)),
    ):
        twice = {of: wide[of] / usual[of] for of in usual if usual[of]}
        assert twice.pop(("all_reduce_data", Axis.DATA)) == pytest.approx(2)
        assert set(twice.values()) == {1}
    needs, fewer = Footprint(narrow).on(grid), Footprint(asked).on(grid)
    assert fewer.total <= needs.total


def test_a_result_tells_how_each_axis_summed() -> None:
    config = TrainConfig(
        model=ModelChoice(model="gpt-5b"), grid=Grid(1, 1, 8, 64), batch=Batch(512), data="synthetic", precision="bf16"
    )
    assert checked(config, 512).as_options()["reduce_dtype"] == {"z": "bf16", "data": "fp32"}


def test_fp16_is_summed_in_fp32_or_itself_and_steps_no_bucket_early() -> None:
    config = TrainConfig(
        model=ModelChoice(model="gpt-test"),
        grid=Grid(data=2),
        batch=Batch(2),
        data="synthetic",
        precision="fp16",
        overlap=Overlap(data=True),
        optim=OptimConfig(clip=0.0),
    )
    (notice,) = notices(checked(config, 2))
    assert "fp16" in notice
    assert checked(config, 2).as_options()["reduce_dtype"] == {"z": "fp16", "data": "fp32"}
    with pytest.raises(UsageError, match="--reduce-dtype bf16"):
        checked(replace(config, reduce_dtype="bf16"), 2)
