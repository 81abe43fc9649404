"""The fastest of all schedules that memory allows is chosen, and is about as fast when delays come."""

from statistics import fmean

import pytest
from pipelines import PASSES, stepped, varied_times

from engine.overlap.tasks import StepSchedule
from engine.pipeline.registry import ScheduleChoice, candidates, fastest
from engine.pipeline.simulation import play


@pytest.mark.parametrize(("stages", "room"), [(4, 1), (4, 2), (8, 1), (8, 2)])
def test_the_choice_by_mean_times_is_the_best_and_beats_1f1b_by_a_tenth(stages: int, room: int) -> None:
    """It knows of the slow stage, but not of delays."""
    allowed = candidates(stages, PASSES, room=room)

    def time_s(choice: ScheduleChoice, case: str) -> float:
        return fmean(step.time_s for step in stepped(choice, stages, case))

    for known, slow, delayed in (("quiet", None, "jitter"), ("slow", stages // 2, "both")):

        def mean_time_s(schedule: StepSchedule, slow: int | None = slow) -> float:
            return play(schedule, stages, PASSES, varied_times(schedule, stages, PASSES, slow=slow)).time_s

        chosen, least_s = fastest(allowed, mean_time_s)
        near = [choice for choice in allowed if time_s(choice, known) < 1.1 * least_s]
        for case in (known, delayed):
            assert time_s(chosen, case) <= 1.01 * min(time_s(choice, case) for choice in near)
            assert time_s(chosen, case) <= 0.9 * time_s(ScheduleChoice("1f1b"), case)
