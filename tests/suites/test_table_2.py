"""The points of axonn-ipdps22 with its own hyperparameters: which they are, where they fit, and what a user is told."""

from pathlib import Path

import pytest
from running import option, project, reframe

import systems
from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import check_grid, check_memory
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import ALL
from engine.pipeline.options import PipelineOptions
from engine.training_record import Training
from suites.base.series import Point, points

TABLE_2 = "axonn-ipdps22-table-2"
SIX_STAGES = ["-c", "suites/weak_scaling.py", "--system", "summit", "--dry-run", "-n", f"{TABLE_2}-48"]


def of_table_2(study: str) -> list[Point]:
    return [point for point in points(study, "summit") if point.series.name == TABLE_2]


def fits(point: Point) -> bool:
    """Whether a V100 holds a step of the point, whose grid must divide network and batch."""
    batch, grid = Batch(point.sequences, point.micro_batch), Grid.parse(point.grid)
    training = Training(
        lookup(point.model), batch, point.series.precision, checkpoint_every=point.series.checkpoint_every, overlap=ALL,
        pipeline=PipelineOptions(point.schedule),
    )  # fmt: skip
    memory = systems.load("summit").device.memory_bytes
    assert memory is not None
    check_grid(training.model, grid, batch)
    try:
        check_memory(training, grid, memory.value)
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
    assert {(point.schedule, point.series.checkpoint_every) for point in every} == {("message-driven", "auto")}


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


@pytest.mark.parametrize("study", ["weak_scaling", "strong_scaling", "pipeline"])
def test_what_does_not_fit_is_of_a_series_that_says_what_the_engine_lacks_for_it(study: str) -> None:
    lacking = [point for point in points(study, "summit") if point.series.lacks]
    refused = [point.grid for point in lacking if not fits(point)]
    assert refused == (["1x1x1x8p6", "1x1x1x4p12"] if study == "pipeline" else [point.grid for point in lacking])


def test_a_point_that_does_not_fit_is_skipped_with_the_engines_sentence_and_what_it_lacks(tmp_path: Path) -> None:
    done = reframe(tmp_path / "a", *SIX_STAGES)
    assert done.code == 0, done.out
    assert not done.scripts
    (told,) = (line for line in done.out.splitlines() if "SKIP" in line)
    assert "On grid 1x1x1x8p6 a step of gpt-12b needs 44.9 GB on each rank, 35 GB of it for weights" in told
    assert "The engine lacks the offload of fp32 weights and optimizer state to the host (axonn-ipdps22 V-B)." in told
    users_own = reframe(tmp_path / "b", *SIX_STAGES, "-S", "grid=1x1x1x16p3")
    assert users_own.code == 1
    assert "Reason: refused: On grid 1x1x1x16p3 a step of gpt-12b needs" in users_own.out


def test_on_devices_that_hold_it_a_point_runs_as_the_paper_says(tmp_path: Path) -> None:
    root = project(tmp_path)
    file = root / "systems" / "devices" / "nvidia.yaml"
    file.write_text(file.read_text().replace("memory_bytes: {value: 16.0e+9", "memory_bytes: {value: 64.0e+9"))
    done = reframe(tmp_path / "a", *SIX_STAGES, root=root)
    assert done.code == 0, done.out
    words = ("--grid", "--schedule", "--micro-batch", "--batch-size", "--checkpoint-every", "--precision")
    found = [option(done.scripts[48], word) for word in words]
    assert found == ["1x1x1x8p6", "message-driven", "8", "16384", "auto", "fp16"]
    assert "--checkpoint-activations" not in done.scripts[48]
