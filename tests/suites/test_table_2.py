"""The points of axonn-ipdps22 with its own hyperparameters: which they are, where they fit, and what a user is told."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running import option, reframe, succeed

import systems
from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import check_grid, check_memory
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import ALL
from engine.pipeline.registry import PipelineOptions
from engine.tracing.memory import check_memory as check_traced
from engine.training_record import Training
from suites.base.series import Point, points

TABLE_2 = "axonn-ipdps22-table-2"


def of_table_2(study: str) -> list[Point]:
    return [point for point in points(study, "summit") if point.series.name == TABLE_2]


def fits(point: Point) -> bool:
    """Whether a V100 holds a step of the point, whose grid must divide network and batch; a trace decides what a count
    can't tell.
    """
    batch, grid = Batch(point.sequences, point.micro_batch), Grid.parse(point.grid)
    pipeline = PipelineOptions(point.schedule)
    training = Training.of(point.series.training, lookup(point.model), batch, overlap=ALL, pipeline=pipeline)
    memory = systems.load("summit").device.memory_bytes
    assert memory is not None
    check_grid(training.model, grid, batch)
    if Footprint(training).surely_fits(grid, memory.value):
        return True
    try:
        check_memory(training, grid, memory.value)
        check_traced(training, grid, memory.value)
    except UsageError:
        return False
    return True


def test_weak_scaling_has_the_stages_and_copies_of_the_table_and_the_papers_schedule_and_recomputation() -> None:
    found = {
        point.model: (point.devices, point.micro_batch, grid.stages, grid.data, grid.plane * grid.z)
        for point in of_table_2("weak_scaling")
        for grid in [Grid.parse(point.grid)]
    }
    assert found == {
        "gpt-12b": (48, 8, 6, 8, 1),
        "gpt-24b": (96, 4, 12, 8, 1),
        "gpt-50b": (192, 4, 24, 8, 1),
        "gpt-100b": (384, 2, 48, 8, 1),
    }
    every = of_table_2("weak_scaling") + of_table_2("strong_scaling")
    assert {(point.schedule, point.series.training.checkpoint_every) for point in every} == {("message-driven", "auto")}


def test_strong_scaling_keeps_the_stages_and_grows_in_copies_with_the_batch() -> None:
    found = [(point.devices, point.sequences, point.micro_batch, point.grid) for point in of_table_2("strong_scaling")]
    assert found == [
        (48, 4096, 8, "1x1x1x8p6"),
        (96, 8192, 8, "1x1x1x16p6"),
        (192, 16384, 8, "1x1x1x32p6"),
        (384, 32768, 8, "1x1x1x64p6"),
    ]


def test_figure_5_has_all_of_its_numbers_of_stages() -> None:
    found = [Grid.parse(point.grid) for point in points("pipeline", "summit") if point.series.name == "axonn-ipdps22"]
    assert [(grid.stages, grid.data) for grid in found] == [(6, 8), (12, 4), (24, 2), (48, 1)]


def test_figure_5_is_measured_without_the_optimizer_with_which_few_stages_do_not_fit() -> None:
    every = [replace(point, schedule="1f1b") for point in points("pipeline", "summit")]
    assert {" ".join(point.series.training.words()) for point in every} == {
        "--precision fp16 --checkpoint-every auto --reduce-dtype fp16 --tensor-mode 4d --optimizer none"
    }
    stepped = {"training": replace(every[0].series.training, optimizer="adamw")}
    with_adamw = [replace(point, series=point.series.model_copy(update=stepped)) for point in every]
    assert [fits(point) for point in every] == [True] * 4
    assert [fits(point) for point in with_adamw] == [False, False, True, True]


def of_the_paper() -> list[Point]:
    """One of those whose number of copies alone differs: a rank of each holds the same."""
    every = of_table_2("weak_scaling") + of_table_2("strong_scaling")
    given = [point for point in every if point.grid != "auto"]
    return list({(point.model, point.micro_batch, Grid.parse(point.grid).stages): point for point in given}.values())


def test_its_points_fit_with_optimizer_state_on_the_host_and_gradients_in_fp16() -> None:
    every = of_the_paper()
    assert len(every) == 4
    assert all((point.series.training.offload, point.series.training.reduce_dtype) == (True, "fp16") for point in every)
    assert [point for point in every if not fits(point)] == []


@pytest.mark.parametrize(
    "left_out", [{"offload": False}, pytest.param({"reduce_dtype": None}, marks=pytest.mark.weekly)]
)
def test_none_of_them_fits_without_either(left_out: dict[str, Any]) -> None:
    series = [
        (point, point.series.model_copy(update={"training": replace(point.series.training, **left_out)}))
        for point in of_the_paper()
    ]
    assert not any(fits(replace(point, series=other)) for point, other in series)


def test_each_is_run_as_the_paper_says(tmp_path: Path) -> None:
    sizes = {"weak_scaling": ("8", "16384"), "strong_scaling": ("8", "4096"), "pipeline": ("1", "2048")}
    suites = [word for study in sizes for word in ("-c", f"suites/{study}.py")]
    names = f"{TABLE_2}-48|Schedules.*axonn-ipdps22-48-gpt-12b-1x1x1x8p6"
    done = succeed(tmp_path, *suites, "--system", "summit", "--dry-run", "-n", names)
    words = ("--grid", "--micro-batch", "--batch-size", "--checkpoint-every", "--precision", "--reduce-dtype")
    for study, (micro, batch) in sizes.items():
        found = done.jobs("bench pipeline") if study == "pipeline" else done.trainings
        found = [script for script in found if f"--label study={study} " in script]
        assert found
        for script in found:
            assert [option(script, word) for word in words] == ["1x1x1x8p6", micro, batch, "auto", "fp16", "fp16"]
            assert (" --offload " in script, " --optimizer none " in script) == (
                study != "pipeline",
                study == "pipeline",
            )
            assert "--checkpoint-activations" not in script
            assert ("--label token_budget=3e+11 " in script) is (study != "pipeline")
            assert study == "pipeline" or option(script, "--schedule") == "message-driven"


def test_a_grid_of_the_users_own_that_does_not_fit_is_refused_in_the_engines_words(tmp_path: Path) -> None:
    words = ["-c", "suites/weak_scaling.py", "--system", "summit", "-n", f"{TABLE_2}-48", "-S", "grid=1x1x1x16p3"]
    done = reframe(tmp_path, *words)
    assert done.code == 1
    assert re.search("refused: .*1x1x1x16p3 .*gpt-12b", done.out)
