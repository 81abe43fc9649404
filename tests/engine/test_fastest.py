"""The fastest of all schedules that memory allows is chosen, and is about as fast when delays come."""

from functools import partial
from statistics import fmean

import pytest
from pipelines import PASSES, equal_times, stepped, varied_times

from engine.errors import UsageError
from engine.overlap.tasks import StepSchedule
from engine.pipeline.fastest import fastest, kept_bytes
from engine.pipeline.registry import ScheduleChoice, candidates, make
from engine.pipeline.simulation import Times


@pytest.mark.parametrize(("stages", "room"), [(4, 1), (4, 2), (8, 1), (8, 2)])
def test_the_choice_by_mean_times_is_the_best_and_beats_1f1b_by_a_tenth(stages: int, room: int) -> None:
    """It knows of the slow stage, but not of delays. room: for so many times the passes that 1F1B keeps."""
    some = candidates(stages, PASSES)

    def fits(schedule: StepSchedule) -> bool:
        kept = [kept_bytes(schedule, stage, stages, PASSES, 1, 1) for stage in range(stages)]
        return max(kept) <= room * stages

    def time_s(choice: ScheduleChoice, case: str) -> float:
        return fmean(step.time_s for step in stepped(choice, stages, case))

    def mean_times(one: StepSchedule, *, slow: int | None = None) -> Times:
        return varied_times(one, stages, PASSES, slow=slow)

    for known, slow, delayed in (("quiet", None, "jitter"), ("slow", stages // 2, "both")):
        chosen, step = fastest(some, stages, PASSES, partial(mean_times, slow=slow), fits)
        near = [choice for choice, one in some.items() if fits(one) and time_s(choice, known) < 1.1 * step.time_s]
        for case in (known, delayed):
            assert time_s(chosen, case) <= 1.01 * min(time_s(choice, case) for choice in near)
            assert time_s(chosen, case) <= 0.9 * time_s(ScheduleChoice("1f1b"), case)


def test_memory_of_a_schedule_is_of_what_it_keeps() -> None:
    zero_bubble = make("message-driven-zb", limit=6, cap=2)
    assert kept_bytes(zero_bubble, 0, 4, 16, held_bytes=10, pending_bytes=100) == pytest.approx(4 * 10 + 2 * 100)
    assert kept_bytes(zero_bubble, 0, 4, 16, held_bytes=10, pending_bytes=1) == pytest.approx(6 * 10)
    assert kept_bytes(make("interleaved"), 3, 4, 16, held_bytes=10, pending_bytes=1) == pytest.approx(5 * 10 / 2)


def test_without_memory_for_any_nothing_is_chosen() -> None:
    with pytest.raises(UsageError, match="Memory allows no schedule with 2 stages and 4 micro-batches"):
        fastest(candidates(2, 4), 2, 4, equal_times, lambda schedule: False)
