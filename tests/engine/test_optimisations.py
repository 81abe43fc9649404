"""`bench optimisations`: its four sides, that all train the same, what memory decides, and what it refuses."""

import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_command import SMALL, finish, start
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.cli.trained import trained
from engine.comm.funnel import Comm
from engine.contest.grids import model_of
from engine.contest.optimisations import SIDES, CheckedOptimisations, check_equal_sides, check_optimisations
from engine.contest.rounds import Rounds, Side
from engine.errors import RunError, UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.overlap.flags import Overlap
from engine.planning.rank import grid_within_nodes
from engine.planning.workload import Workload
from engine.result.metrics import paired
from engine.result.schema import Iteration, Result, read
from engine.result.schema.contest import OptimisationSide, Ratio
from engine.training.config import RunConfig
from engine.training.trainer import Trainer
from engine.training_record import Training

FULL = Overlap.parse("oar,ors,oag")
GRIDS = ["--baseline", "2x1x1x1", "--grid", "1x1x2x1"]


def asked(
    grid: str = "1x1x2x1",
    baseline: str | None = "2x1x1x1",
    *,
    ranks: int = 2,
    overlap: Overlap = FULL,
    apart: bool | None = None,
    **changes: Any,
) -> CheckedOptimisations:
    model = ModelChoice(layers=2, hidden=32, heads=4, vocab=64, seq=8)
    config = RunConfig(
        model=model, batch=Batch(8), data="synthetic", device="cpu", **({"grid": Grid.parse(grid)} | changes)
    )
    base = None if baseline is None else Grid.parse(baseline)
    return check_optimisations(config, base, overlap, ranks, Rounds(rounds=2), apart=apart)[0]


def test_each_side_has_one_setting_more_and_the_last_two_share_a_model() -> None:
    contest = asked()
    assert [(str(run.grid), bool(run.config.tune_matmul), str(run.training.overlap)) for run in contest.runs] == [
        ("2x1x1x1", False, "none"),
        ("1x1x2x1", False, "none"),
        ("1x1x2x1", True, "none"),
        ("1x1x2x1", True, "ors,oag"),  # x and y have one rank
    ]
    assert [model_of(run) for run in contest.runs].count(model_of(contest.runs[-1])) == 2
    options = contest.as_options()
    assert (options["optimisations"], options["overlap"], options["tune_matmul"]) == ([*SIDES], "ors,oag", True)
    assert asked(tune_matmul="force").runs[-1].config.tune_matmul == "force"


def test_models_that_a_device_cant_hold_together_are_built_for_their_turns() -> None:
    assert not asked().apart, "nothing is known of the memory"
    assert not asked(device_memory=1e9).apart
    assert asked(device_memory=8e5).apart
    assert asked(apart=True, device_memory=1e9).apart
    assert asked(apart=True).config.iterations == asked().config.iterations + 4 * 2


@pytest.mark.parametrize(
    ("model", "devices", "grid"),
    [
        ("gpt-5b", 512, "8x1x1x64"),
        ("gpt-10b", 1024, "8x1x1x128"),
        ("gpt-20b", 2048, "8x1x2x128"),
        ("gpt-40b", 4096, "8x1x2x256"),
        ("gpt-80b", 8192, "8x1x4x256"),
    ],
)
def test_the_baseline_fills_a_node_with_x_and_has_as_few_shards_as_fit(model: str, devices: int, grid: str) -> None:
    training = Training(lookup(model), Batch(8192, 2), precision="bf16", checkpoint_every=1)
    assert str(grid_within_nodes(Workload(training, 64e9), devices, 8)) == grid
    with pytest.raises(UsageError, match=r"x=3.*--baseline"):
        grid_within_nodes(Workload(training, 64e9), devices, 3)


def test_the_baseline_is_chosen_by_the_devices_of_a_node() -> None:
    assert [str(asked(baseline=None, devices_per_node=each).runs[0].grid) for each in (1, 2)] == ["1x1x1x2", "2x1x1x1"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"baseline": "4x1x1x1"}, "has 4 ranks, but 2"),
        ({"grid": "1x1x1x2"}, "grid 1x1x1x2"),
        ({"overlap": Overlap.parse("cache=3")}, "use cache=2"),
    ],
)
def test_what_cant_be_compared_is_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        asked(**changes)


def quick_tuning() -> None:
    from engine.tuning import tune

    tune.BUDGET_S["cpu"] = 0.2


def compare(out: Path, *options: str) -> tuple[Result, str]:
    words = ["bench", "optimisations", *SMALL, *GRIDS, *options, "--out", str(out)]
    codes, said = finish(start(2, *words, before=quick_tuning))
    assert codes == [0, 0], said
    return read(out), said[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    return compare(tmp_path_factory.mktemp("optimisations") / "r.json", "--rounds", "2", "--steps-per-round", "2")


def test_two_ranks_take_turns_in_four_sides_whose_parts_add_up(run: tuple[Result, str]) -> None:
    result, said = run
    sides = result.sides(OptimisationSide)
    assert (result.kind, result.status, result.grid) == ("optimisations", "ok", "2x1x1x1")
    assert [side.name for side in sides] == [*SIDES]
    assert [(side.grid, side.micro_batch) for side in sides] == [("2x1x1x1", 8), *[("1x1x2x1", 4)] * 3]
    assert [(side.tuned, side.overlap) for side in sides] == [
        (False, "none"),
        (False, "none"),
        (True, "none"),
        (True, "ors,oag"),
    ]
    for side in sides:
        assert [len(times) for times in side.rounds_s] == [2, 2]
        assert side.breakdown is not None
        parts = side.breakdown.compute_s + side.breakdown.collectives_s
        assert parts == pytest.approx(side.time_per_iteration_s)
    exposed = {axis.axis for side in sides[:1] for axis in side.breakdown.axes if axis.exposed_s > 0}  # type: ignore[union-attr]
    assert "x" in exposed
    assert result.tuning is not None
    assert len(trained(result).splitlines()) == 1 + len(SIDES)
    assert "oar is left out" in said


def test_each_step_is_compared_round_by_round_with_the_one_before_and_with_the_baseline(
    run: tuple[Result, str],
) -> None:
    sides = run[0].sides(OptimisationSide)
    assert sides[0].over_base is None
    assert sides[0].over_former is None
    medians = [[sum(times) / 2 for times in side.rounds_s] for side in sides]  # of two steps
    for place in (1, 2, 3):
        over = [list(zip(medians[place], medians[other], strict=True)) for other in (place - 1, 0)]
        assert sides[place].over_former == Ratio.of(paired([over[0]]))
        assert sides[place].over_base == Ratio.of(paired([over[1]]))


def test_all_sides_train_the_same_steps(run: tuple[Result, str]) -> None:
    losses = [step.loss for step in run[0].iterations[:4]]
    assert losses[:3] == pytest.approx([losses[0]] * 3, rel=1e-6)
    assert losses[3] != pytest.approx(losses[0], rel=1e-6), "the second step of the model that two sides share"


def test_models_that_are_built_for_their_turns_start_anew_with_a_warm_up(tmp_path: Path) -> None:
    result, said = compare(tmp_path / "r.json", "--rounds", "1", "--apart")
    assert result.config["apart"] is True
    assert [len(side.rounds_s) for side in result.sides(OptimisationSide)] == [1] * 4
    first = result.iterations[0].loss
    built = [step for step in result.iterations if step.loss == pytest.approx(first, rel=1e-6)]
    assert all(step.warmup for step in built)
    assert len(built) >= 3 + 2, "three models at first, and in the round all but those that were still there"
    assert result.iterations[-1].index == len(result.iterations) - 1
    assert "round 1/1  overlap" in said


def sides_of(*values: dict[int, tuple[float, float]]) -> list[Side]:
    def step(loss: float, norm: float) -> Iteration:
        return Iteration(index=0, time_s=1.0, loss=loss, grad_norm=norm, learning_rate=1.0, warmup=True)

    return [
        cast("Side", SimpleNamespace(name=name, by_step={number: step(*both) for number, both in known.items()}))
        for name, known in zip(SIDES, values, strict=False)
    ]


def test_a_side_that_trains_otherwise_is_found_by_its_first_losses() -> None:
    contest = asked()
    base = {step: (6.0 - step, 1.0) for step in range(9)}
    check_equal_sides(sides_of(base, base, {0: (6.0, 1.00005), 5: (9.0, 1.0)}), contest)
    with pytest.raises(RunError, match=r"grid.* step 2 .*loss"):
        check_equal_sides(sides_of(base, base | {2: (4.001, 1.0)}), contest)
    with pytest.raises(RunError, match=r"tuning.* step 0 .*norm"):
        check_equal_sides(sides_of(base, base, base | {0: (6.0, 1.03)}), contest)
    coarse = replace(contest, config=replace(contest.config, precision="bf16"))
    check_equal_sides(sides_of(base, base | {2: (4.001, 1.0)}), coarse)


def test_a_trainer_that_is_dropped_keeps_no_weight_gradient_or_moment() -> None:
    def work(comm: Comm) -> list[bool]:
        run = asked("1x1x2x1", apart=True).runs[-1]
        assert comm.recorder is not None
        trainer = Trainer(run.training, run.dataset, comm, comm.recorder)
        trainer.step()
        tensors = [*trainer.model.own_parameters().values(), trainer.model.flat_gradients]
        kept = [weakref.ref(one) for one in (trainer.model, trainer.runner, trainer.optimizer, *tensors)]
        tensors.clear()
        trainer.drop()
        return [one() is None for one in kept]

    for gone in run_ranks(Grid.parse("1x1x2x1"), work, record=True):
        assert all(gone)
        assert len(gone) > 3
