"""AUTO keeps more micro-batches than 1F1B where a device has room for them, and says which limits it takes."""

from dataclasses import replace
from statistics import fmean

import pytest
from pipelines import CASES, PASSES, idle, stepped

from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import choose_schedule, list_schedules
from engine.footprint.memory import Footprint, usable
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.pipeline.registry import PipelineOptions, ScheduleChoice
from engine.training.checks import checked
from engine.training.config import TrainConfig
from engine.training_record import Training

TRAINING, GRID = Training(lookup("gpt-20b"), Batch(64, 1), precision="bf16", checkpoint_every=1), Grid(x=4, pipe=4)


def kept(choice: ScheduleChoice) -> float:
    schedule = choice.make()
    return max(sum(schedule.live_passes(stage, GRID.stages, 64)) for stage in range(GRID.stages)) / schedule.chunks


def test_what_memory_allows_grows_with_it_and_leaves_the_same_part_free() -> None:
    """By the formulas 1F1B needs 25.4 GB of a rank, and 8 micro-batches with all weight gradients deferred 36.6."""
    most, counts = [], []
    for memory in (37e9, 40e9, 60e9, 200e9):
        needs = list_schedules(TRAINING, GRID, memory)
        assert all(one.total <= usable(memory) for one in needs.values())
        most.append(max(map(kept, needs)))
        counts.append(len(needs))
    assert (most, counts) == (sorted(most), sorted(counts))
    assert GRID.stages < most[0] < most[-1] == 2 * GRID.stages
    assert {kept(choice) for choice in list_schedules(TRAINING, GRID, None)} <= {1, GRID.stages}


def test_interleaved_is_among_them_with_its_memory_where_there_are_blocks_for_its_chunks() -> None:
    two, four = (ScheduleChoice("interleaved", chunks=chunks) for chunks in (2, 4))
    needs = list_schedules(TRAINING, GRID, 60e9)
    assert needs[two] == Footprint(replace(TRAINING, pipeline=two.options())).on(GRID)
    assert needs[ScheduleChoice("1f1b")].total < needs[four].total < needs[two].total
    short = replace(TRAINING, model=replace(TRAINING.model, layers=8))  # type: ignore[type-var]
    assert {two, four} & list_schedules(short, GRID, 60e9).keys() == {two}
    by_hand = replace(short, pipeline=PipelineOptions(stages="2,2,2,2"))
    assert not {two, four} & list_schedules(by_hand, GRID, 60e9).keys()


def test_a_step_that_would_fill_the_whole_memory_keeps_no_more_than_1f1b() -> None:
    needs = list_schedules(TRAINING, GRID, 28e9)
    assert ScheduleChoice("1f1b") in needs
    assert all(one.total <= 28e9 and kept(choice) <= GRID.stages for choice, one in needs.items())
    assert list_schedules(TRAINING, GRID, 1e9) == list_schedules(TRAINING, GRID, None)


def test_auto_is_settled_by_memory_and_what_a_person_names_is_left() -> None:
    roomy = choose_schedule(TRAINING, GRID, 60e9)
    assert roomy.staged(GRID).choice == ScheduleChoice("message-driven-zb", limit=8, cap=8)
    assert usable(60e9) >= Footprint(roomy).on(GRID).total > Footprint(TRAINING).on(GRID).total
    named = replace(TRAINING, pipeline=PipelineOptions("message-driven"))
    assert choose_schedule(named, GRID, 60e9) == named
    assert choose_schedule(TRAINING, Grid(x=4), 60e9) == TRAINING


def config(memory: float | None, options: PipelineOptions) -> TrainConfig:
    return TrainConfig(
        model=ModelChoice(model="gpt-20b"),
        grid=GRID,
        batch=TRAINING.batch,
        precision="bf16",
        data="synthetic",
        checkpoint_activations=True,
        device_memory=memory,
        pipeline=options,
    )


@pytest.mark.parametrize(("memory", "schedule", "limit"), [(None, "zero-bubble", None), (64e9, "message-driven-zb", 8)])
def test_a_run_says_which_limits_it_takes(memory: float | None, schedule: str, limit: int | None) -> None:
    taken = checked(config(memory, PipelineOptions()), GRID.size).as_options()["pipeline"]
    assert (taken["schedule"], taken["limit"]) == (schedule, limit)


def test_limits_beside_auto_are_refused_whatever_memory_there_is() -> None:
    with pytest.raises(UsageError, match=r"--schedule auto .*--pipeline-limit"):
        checked(config(64e9, PipelineOptions(pipeline_limit=3)), GRID.size)


@pytest.mark.parametrize(("stages", "case", "less"), [(4, "jitter", 2.5), (8, "quiet", 3), (8, "jitter", 5)])
def test_twice_the_passes_leave_stages_less_idle(stages: int, case: str, less: float) -> None:
    """In points of the idle share, against ZB-H1 with 1F1B's passes, which is the best of those on equal stages."""

    def share(choice: ScheduleChoice) -> float:
        return 100 * fmean(idle(step, stage) for step in stepped(choice, stages, case) for stage in range(stages))

    assert case in CASES
    double = min(2 * stages, PASSES)
    more = ScheduleChoice("message-driven-zb", limit=double, cap=double)
    assert share(more) <= share(ScheduleChoice("zero-bubble")) - less
