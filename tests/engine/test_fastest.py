"""The fastest of all schedules that memory allows is chosen, and is about as fast when delays come."""

from statistics import fmean

import pytest
from pipelines import PASSES, stepped, varied_times

from engine.overlap.tasks import Direction, StageTask, StepSchedule
from engine.pipeline.registry import ScheduleChoice, candidates
from engine.pipeline.simulation import LateError, Times, equal_times, play
from engine.pipeline.staged import AS_FAST, fastest, step_time


@pytest.mark.parametrize(("stages", "room"), [(4, 1), (4, 2), (8, 1), (8, 2)])
def test_the_choice_by_mean_times_is_the_best_and_beats_1f1b_by_a_tenth(stages: int, room: int) -> None:
    """The simulation knows of the slow stage, but not of delays."""
    allowed = candidates(stages, PASSES, room=room)

    def time_s(choice: ScheduleChoice, case: str) -> float:
        return fmean(step.time_s for step in stepped(choice, stages, case))

    for known, slow, delayed in (("quiet", None, "jitter"), ("slow", stages // 2, "both")):

        def mean_times(schedule: StepSchedule, slow: int | None = slow) -> Times:
            return varied_times(schedule, stages, PASSES, slow=slow)

        chosen, least = fastest(allowed, stages, PASSES, mean_times)
        near = [choice for choice in allowed if time_s(choice, known) < 1.1 * least.time_s]
        for case in (known, delayed):
            assert time_s(chosen, case) <= 1.01 * min(time_s(choice, case) for choice in near)
            assert time_s(chosen, case) <= 0.9 * time_s(ScheduleChoice("1f1b"), case)


@pytest.mark.parametrize(("stages", "passes"), [(2, 3), (4, 16), (4, 40), (6, 25)])
def test_the_choice_is_that_of_all_steps_played_to_their_ends(stages: int, passes: int) -> None:
    for slow in (None, 1):

        def times(schedule: StepSchedule, slow: int | None = slow) -> Times:
            return varied_times(schedule, stages, passes, slow=slow)

        allowed = candidates(stages, passes, room=2)
        steps = {choice: step_time(one, stages, passes, times(one)) for choice, one in allowed.items()}
        least_s = min(step.time_s for step in steps.values()) * (1 + AS_FAST)
        first = next(choice for choice in allowed if steps[choice].time_s <= least_s)
        assert fastest(allowed, stages, passes, times) == (first, steps[first])


@pytest.mark.parametrize("room", [1, 2])
@pytest.mark.parametrize("slow", [None, 1])
def test_of_many_micro_batches_the_choice_is_as_fast_as_a_simulation_of_all_finds_any(
    room: int, slow: int | None
) -> None:
    stages, passes = 4, 64

    def times(schedule: StepSchedule) -> Times:
        return varied_times(schedule, stages, passes, slow=slow)

    allowed = candidates(stages, passes, room=room)
    whole = {choice: play(one, stages, passes, times(one)) for choice, one in allowed.items()}
    choice, step = fastest(allowed, stages, passes, times)
    assert whole[choice].time_s <= 1.01 * min(one.time_s for one in whole.values())
    assert step.time_s == pytest.approx(whole[choice].time_s, rel=0.01)
    assert step.busy_s == pytest.approx(fmean(whole[choice].busy_s), rel=0.01)


def test_a_step_that_can_t_be_over_in_time_is_played_no_further() -> None:
    schedule = ScheduleChoice("1f1b").make()
    times = equal_times(schedule)
    time_s = play(schedule, 4, 8, times).time_s
    assert play(schedule, 4, 8, times, by_s=time_s).time_s == time_s
    with pytest.raises(LateError):
        play(schedule, 4, 8, times, by_s=time_s - 0.1)
    assert step_time(schedule, 4, 800, times, by_s=2000).time_s == float("inf")


def test_times_of_micro_batches_that_are_alike_are_asked_for_once_a_stage() -> None:
    schedule = ScheduleChoice("zero-bubble").make()
    stages, asked = 4, list[tuple[int, str]]()

    def work_s(stage: int, task: StageTask) -> float:
        asked.append((stage, task.direction))
        return 1.0 + stage

    step_time(schedule, stages, 64, Times(work_s, equal_times(schedule).transit))
    assert sorted(asked) == sorted((stage, direction) for stage in range(stages) for direction in Direction)
