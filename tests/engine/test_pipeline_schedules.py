"""Whatever comes when, a schedule carries out each task once, in order, within its bounds, and never stands still."""

from itertools import pairwise

import numpy as np
import pytest
from pipelines import DYNAMIC, SCHEDULES, WatchedSchedule, kept, make, wild_times

from engine.errors import UsageError
from engine.overlap.tasks import Direction, StageTask, StepSchedule, receiver, takes_message
from engine.pipeline.registry import NAMES, ScheduleChoice, candidates
from engine.pipeline.simulation import PipelineStep, Times, Transit, equal_times, play

FORWARD, BACKWARD, WEIGHT = Direction


def allowed(schedule: StepSchedule, stages: int, passes: int) -> bool:
    return schedule.chunks == 1 or passes % stages == 0


def check(step: PipelineStep, schedule: StepSchedule, passes: int) -> None:
    """Each task came once; parts of a pass and micro-batches in their order; and no more was kept than is said."""
    stages, parts = len(step.busy_s), list(Direction) if schedule.deferring else [FORWARD, BACKWARD]
    for stage in range(stages):
        tasks = [played.task for played in step.played if played.stage == stage]
        for part in parts:
            for chunk in range(schedule.chunks):
                numbers = [task.number for task in tasks if task.direction is part and task.chunk == chunk]
                assert numbers == list(range(passes))
        assert len(tasks) == len(parts) * passes * schedule.chunks
        at = {task: place for place, task in enumerate(tasks)}
        for task in tasks:
            for before, after in pairwise(parts):
                assert at[task._replace(direction=before)] < at[task._replace(direction=after)]
        held, pending = schedule.live_passes(stage, stages, passes)
        _, most_pending, most = kept(step, stage)
        assert most <= held + pending
        assert most_pending <= pending


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_task_comes_once_in_its_order_and_within_bounds(name: str) -> None:
    schedule = SCHEDULES[name]
    for stages in range(1, 9):
        for passes in (1, 2, 3, 5, 8, 16, 21):
            if allowed(schedule, stages, passes):
                step = play(WatchedSchedule(schedule), stages, passes, equal_times(schedule))
                check(step, schedule, passes)


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - set(DYNAMIC)))
def test_bounds_of_known_orders_are_reached(name: str) -> None:
    schedule, stages, passes = SCHEDULES[name], 4, 16
    step = play(schedule, stages, passes, equal_times(schedule))
    bounds = [schedule.live_passes(stage, stages, passes) for stage in range(stages)]
    assert [kept(step, stage)[1:] for stage in range(stages)] == [(bound[1], sum(bound)) for bound in bounds]


def test_zero_bubble_keeps_no_more_than_the_first_stage_of_1f1b() -> None:
    for stages in range(1, 9):
        for passes in range(1, 20):
            most = sum(make("1f1b").live_passes(0, stages, passes))
            for stage in range(stages):
                assert sum(make("zero-bubble").live_passes(stage, stages, passes)) == most
                assert sum(make("message-driven-zb").live_passes(stage, stages, passes)) == most


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - set(DYNAMIC)))
def test_neighbours_send_and_take_in_one_order(name: str) -> None:
    """A channel has one order, that of the sends, as also the ring's from the last stage to the first."""
    schedule = SCHEDULES[name]
    for stages in range(1, 9):
        for passes in (stages, 3 * stages):
            orders = [list(schedule.order(stage, stages, passes).known) for stage in range(stages)]
            for stage, order in enumerate(orders):
                for direction, step in ((FORWARD, 1), (BACKWARD, -1)):
                    there = (stage + step) % stages
                    makes = [task for task in order if task.direction is direction]
                    sent = [found[1] for task in makes if (found := receiver(stage, task, stages, schedule.chunks))]
                    taken = [
                        task
                        for task in orders[there]
                        if task.direction is direction and takes_message(there, task, stages, schedule.chunks)
                    ]
                    assert sent == taken


@pytest.mark.parametrize("name", ["message-driven", "message-driven-zb"])
def test_no_order_of_arrival_stops_it(name: str) -> None:
    for seed in range(1000):
        stages, passes, limit, cap = (int(number) for number in np.random.default_rng(seed).integers(1, 7, 4))
        schedule = make(name, limit, cap if name.endswith("zb") else None)
        step = play(WatchedSchedule(schedule), stages, passes, wild_times(seed))
        check(step, schedule, passes)


@pytest.mark.parametrize("name", SCHEDULES)
def test_neither_a_flood_of_forwards_nor_a_stage_asleep_stops_it(name: str) -> None:
    schedule, stages, passes = SCHEDULES[name], 4, 12

    def flood(stage: int, task: StageTask) -> Transit:
        return Transit(0.0, 1e3 if task.direction is BACKWARD else 0.0)

    times = equal_times(schedule)
    check(play(schedule, stages, passes, Times(times.work_s, flood)), schedule, passes)
    for asleep in range(stages):
        for when in (FORWARD, BACKWARD):

            def work_s(stage: int, task: StageTask, asleep: int = asleep, when: Direction = when) -> float:
                return 1e3 if stage == asleep and task == StageTask(when, 2) else 1.0

            check(play(schedule, stages, passes, Times(work_s, times.transit)), schedule, passes)


@pytest.mark.parametrize("name", DYNAMIC)
def test_who_is_told_the_tasks_goes_the_same_way(name: str) -> None:
    """Ranks of a stage that see other messages than their leader follow it."""
    schedule, stages, passes = SCHEDULES[name], 3, 8
    for seed in range(20):
        step = play(schedule, stages, passes, wild_times(seed))
        for stage in range(stages):
            order = schedule.order(stage, stages, passes)
            for told in [played.task for played in step.played if played.stage == stage]:
                assert order.next(lambda task, told=told: task == told) == told  # type: ignore[misc]
            assert order.left == 0


def test_algorithm_2_begins_with_its_limit_and_then_takes_turns() -> None:
    order = make("message-driven", limit=2).order(0, 3, 4)
    first = [StageTask(FORWARD, 0), StageTask(FORWARD, 1)]
    assert [order.next(lambda task: task.direction is FORWARD) for _ in range(3)] == [*first, None]
    turns = [StageTask(BACKWARD, 0), StageTask(FORWARD, 2), StageTask(BACKWARD, 1), StageTask(FORWARD, 3)]
    assert [order.next(lambda task: True) for _ in turns] == turns


def test_a_stage_computes_weight_gradients_only_while_no_message_has_come() -> None:
    order = make("message-driven-zb", limit=4).order(1, 3, 4)
    came = {StageTask(FORWARD, 0), StageTask(FORWARD, 1), StageTask(FORWARD, 2)}
    assert [order.next(came.__contains__) for _ in range(2)] == [StageTask(FORWARD, 0), StageTask(FORWARD, 1)]
    came |= {StageTask(BACKWARD, 0), StageTask(BACKWARD, 1)}
    taken = [order.next(came.__contains__) for _ in range(6)]
    backwards, weights = [StageTask(BACKWARD, 0), StageTask(BACKWARD, 1)], [StageTask(WEIGHT, 0), StageTask(WEIGHT, 1)]
    assert taken == [backwards[0], StageTask(FORWARD, 2), backwards[1], *weights, None]


def test_schedules_go_by_name() -> None:
    assert all(make(name).chunks in (1, 2) for name in NAMES)
    assert make("interleaved", chunks=3).chunks == 3
    assert make("message-driven", limit=7).live_passes(0, 4, 16) == (7, 0)
    assert make("message-driven-zb", limit=7, cap=2).live_passes(0, 4, 16) == (5, 2)
    choice = ScheduleChoice("message-driven-zb", limit=7, cap=2)
    assert str(choice).split(", ") == ["message-driven-zb", "limit 7", "cap 2"]


def test_candidates_are_what_stages_micro_batches_and_blocks_allow() -> None:
    def named(passes: int, blocks: int | None = None, room: float = 2.0) -> set[str]:
        return {choice.name for choice in candidates(4, passes, blocks, room)}

    assert named(8, blocks=8) == set(NAMES)
    assert named(6) == named(8, blocks=7) == set(NAMES) - {"interleaved"}
    small = {name for name in NAMES if sum(make(name).live_passes(0, 4, 8)) <= 4 * make(name).chunks}
    assert named(8, room=1.0) == small <= set(NAMES) - {"interleaved", "gpipe"}, "these keep more than 1F1B"
    assert all(schedule.live_passes(0, 4, 3)[0] <= 3 for schedule in candidates(4, 3).values())


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (ScheduleChoice("gpip"), "gpipe"),
        (ScheduleChoice("1f1b", limit=4), "1f1b .*--pipeline-limit: .*--schedule message-driven or mess"),
        (ScheduleChoice("message-driven", cap=4), "--weight-limit: .*--schedule message-driven-zb"),
        (ScheduleChoice("zero-bubble", chunks=2), "--chunks: .*--schedule interleaved"),
        (ScheduleChoice("message-driven", limit=0), "--pipeline-limit .* 1 .* 0"),
        (ScheduleChoice("message-driven-zb", cap=0), "--weight-limit .* 1 .* 0"),
        (ScheduleChoice("interleaved", chunks=1), "--chunks .* 2 .* 1"),
    ],
)
def test_a_wrong_choice_is_refused_in_one_sentence(choice: ScheduleChoice, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choice.make()


def test_interleaving_refuses_micro_batches_that_do_not_come_in_groups() -> None:
    with pytest.raises(UsageError, match=r"4 micro-batches .* 6"):
        play(make("interleaved"), 4, 6, equal_times(make("interleaved")))
