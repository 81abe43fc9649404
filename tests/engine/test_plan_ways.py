"""What a plan chooses for each grid: its tensor mode, its micro-batch and how many blocks are recomputed."""

import json
from dataclasses import replace

import pytest
from dry_plans import few_layers

from engine.batch import Batch
from engine.cli.main import main
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.models.flops import model_flops, repeated_flops, step_flops
from engine.models.gpt.config import GPTConfig
from engine.models.mode_choice import MODES
from engine.overlap.flags import ALL
from engine.planning.document import GridPlan
from engine.planning.rank import rank
from engine.planning.workload import Workload
from engine.simulator.bandwidth import Bandwidths, run_links
from engine.training_record import Training, TrainingOptions

LINKS = Bandwidths(devices_per_node=8, inter=100e9, within=50e9)
AS_RUN = run_links(LINKS)
OPTIONS = TrainingOptions(precision="bf16", checkpoint_activations=True)
DEEP = few_layers("gpt-10b", 12)
GRID = Grid(1, 1, 8, 1)


def workload(memory: float | None, sequences: int = 32, **changes: object) -> Workload:
    known = Workload(
        Training.of(OPTIONS, DEEP, Batch(sequences), overlap=ALL),
        memory,
        modes=MODES,
        recomputes_least=True,
        flops_per_s=100e12,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def needed(blocks: int, grid: Grid = GRID, micro: int = 4, mode: str = "4d") -> float:
    """Bytes by the count with so many blocks recomputed."""
    training = workload(None).in_micro_batches(micro)
    training = replace(training.recomputing(int(blocks > 0)), tensor_mode=mode)  # type: ignore[arg-type]
    return Footprint(replace(training, checkpoint_blocks=blocks or None)).on(grid).total


def test_where_there_is_room_nothing_is_recomputed() -> None:
    for memory in (None, 2 * needed(0)):
        found = workload(memory).choose(GRID, AS_RUN)
        assert found is not None
        assert (found.training.recomputed_blocks, found.micro) == (0, 4)


def test_as_few_blocks_are_recomputed_as_fit() -> None:
    for blocks in (1, 5, 11):
        of = workload(None)
        whole = of.candidate(GRID, of.in_micro_batches(4), AS_RUN)
        limit = (needed(blocks) + needed(blocks - 1)) / 2
        found = of.recompute_fewest(whole, AS_RUN, limit)
        assert found is not None
        assert found.training.recomputed_blocks == blocks
        assert found.needs.total == needed(blocks)
        assert of.recompute_fewest(whole, AS_RUN, needed(12)) is None
        assert found.compute_s < whole.compute_s


def test_on_x_activations_are_split_where_memory_asks_alone() -> None:
    grid = Grid(x=8)
    split, whole = needed(0, grid, mode="split"), needed(0, grid)
    assert split < whole
    training = replace(workload(None).training, batch=Batch(4, 4))
    ways = [workload(memory, training=training).choose(grid, AS_RUN) for memory in (None, (split + whole) / 2 / 0.7)]
    assert [one and one.training.tensor_mode for one in ways] == ["4d", "split"]


def test_on_y_no_attention_is_repeated_and_modes_that_a_grid_refuses_are_left_out() -> None:
    found = workload(None).choose(Grid(y=4), AS_RUN)
    assert found is not None
    assert found.training.tensor_mode == "split"
    asked = workload(None, modes=("4d",)).choose(Grid(y=4), AS_RUN)
    assert asked is not None
    assert asked.compute_s > found.compute_s
    repeated = repeated_flops(DEEP, 32, Grid(y=4), recomputed=0)
    assert asked.compute_s == pytest.approx((model_flops(DEEP, 32) + repeated) / 4 / 100e12)
    assert workload(None, modes=("2d",)).choose(Grid(y=4), AS_RUN) is None
    square = workload(None, modes=("2d",)).choose(Grid(2, 2), AS_RUN)
    assert square is not None
    assert square.training.mode(square.grid).square


def test_what_is_asked_for_stays() -> None:
    of = workload(2 * needed(0), modes=(), recomputes_least=False)
    found = of.choose(Grid(y=4), AS_RUN)
    assert found is not None
    assert (found.training.tensor_mode, found.training.recomputed_blocks) == ("auto", 12)
    assert found.compute_s == pytest.approx(step_flops(DEEP, 32, recomputed=12) / 4 / 100e12), "split repeats nothing"


def test_the_coarse_pass_ranks_by_about_as_many_blocks() -> None:
    memory = (needed(6) + 1e6) / 0.7
    of = workload(memory, sequences=32)
    (found,) = rank(of, [GRID], LINKS).candidates
    assert found.micro == 4
    assert abs(found.training.recomputed_blocks - 6) <= 1


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> GridPlan:
    """Plan on devices in which no grid has room for all activations."""
    out = tmp_path_factory.mktemp("tight") / "plan.json"
    words = ["plan", "--system", "frontier", "--gpus", "4", "--batch-size", "16", "--micro-batch", "4", "--pipe", "1"]
    words += ["--layers", "12", "--hidden", "256", "--heads", "4", "--seq", "1024", "--vocab", "512"]
    assert main([*words, "--device-memory", "0.7e9", "--out", str(out)]) == 0
    return GridPlan.model_validate_json(out.read_text())


def test_a_plan_recomputes_what_it_must_and_fits_by_its_traces(tight: GridPlan) -> None:
    blocks = [row.recomputed_blocks for row in tight.rows]
    assert any(0 < number < 12 for number in blocks if number is not None)
    for row in tight.rows:
        assert row.memory.total <= 0.7 * 0.7e9
    assert tight.recomputes_least


def test_a_training_takes_a_row_by_its_words(tight: GridPlan, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in tight.rows if row.recomputed_blocks not in (None, 0, 12))
    words = ["--layers", "12", "--hidden", "256", "--heads", "4", "--seq", "1024", "--vocab", "512"]
    words += ["--batch-size", "16", "--data", "synthetic", "--ranks", "4", "--json", *tight.words(row)]
    assert main(["check", *words]) == 0
    assert json.loads(capsys.readouterr().out)["grid"] == row.grid


def test_a_pipeline_that_a_trace_finds_too_large_is_trained_otherwise() -> None:
    """The count may err: what it needs at most is given as a limit, until nothing is left."""
    grid, of = Grid(pipe=4), workload(None)
    kept = of.choose_staged(grid, 1, AS_RUN)
    assert kept is not None
    assert kept.training.recomputed_blocks == 0
    other = of.choose_staged(grid, 1, AS_RUN, 0.999 * kept.needs.total)
    assert other is not None
    assert other.training.recomputed_blocks == DEEP.layers
    assert of.choose_staged(grid, 1, AS_RUN, 0.5 * other.needs.total) is None


def test_a_row_has_no_option_that_its_mode_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--system", "frontier", "--model", "gpt-local-1", "--gpus", "4", "--batch-size", "16", "--json"]
    words += ["--pipe", "1", "--gather-inputs-again", "--overlap", "none"]
    assert main(words) == 0
    plan = GridPlan.model_validate_json(capsys.readouterr().out)
    for mode in ("4d", "split", "2d"):
        options = plan.words(plan.rows[0].model_copy(update={"tensor_mode": mode}))
        assert ("--gather-inputs-again" in options) == (mode == "split")
        assert options[-2:] == ["--overlap", "none"]


def test_what_needs_least_may_be_a_square_in_larger_micro_batches() -> None:
    grid = Grid(2, 2, 4)
    training, needs = workload(None, modes=("2d",), sequences=32).least(grid)
    assert training.tensor_mode == "2d"
    assert training.batch.micro == 2
    assert needs.total > 0


def test_options_that_contradict_one_another_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["plan", "--system", "frontier", "--model", "gpt-local-1", "--gpus", "4", "--batch-size", "16"]
    for words in (
        ["--keep-activations", "--checkpoint-blocks", "1"],
        ["--checkpoint-blocks", "0"],
        ["--checkpoint-blocks", "99"],
    ):
        assert main([*job, *words]) == 2
        assert "--checkpoint-blocks" in capsys.readouterr().err
    model = GPTConfig("small", layers=2, hidden=8, heads=2, vocabulary=16, sequence=4)
    every = Training(model, Batch(4), checkpoint_every=1, checkpoint_blocks=2)
    assert (every.recomputed_blocks, every.alike) == (2, True)
    assert not replace(every, checkpoint_blocks=1).alike
