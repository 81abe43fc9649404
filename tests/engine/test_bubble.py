"""Whether a schedule's bubble is judged by what one expects of it: each outcome, by times that have it."""

from typing import Any

import pytest

from engine.result.judges.bubble import OFF, UNEVEN, ZERO, judge
from engine.result.schema.contest import ScheduleSide, StageTimes
from engine.result.schema.step import MachineUsage

WORK_S, REST_S, STAGES = 8.0, 0.5, 3
NOISE_S = (0.0, 0.01, -0.01, 0.005, -0.005, 0.002, -0.002)
"""It is what the rounds of a job are off."""


def turns(name: str, idle_s: float, *, noise: float = 1.0, longer: float = 0.0, **changes: Any) -> ScheduleSide:
    """A job of a schedule whose stages wait that long. longer: by that part the last stage works longer."""
    waits_s = [idle_s + noise * off_s for off_s in NOISE_S]
    works_s = [WORK_S * (1 + longer * (stage == STAGES - 1)) for stage in range(STAGES)]
    stages = tuple(
        StageTimes(
            idle_share=0.5,
            simulated_idle_share=0.5,
            task_s={},
            most_held=1,
            most_pending=0,
            idle_s=tuple((wait_s,) for wait_s in waits_s),
            work_s=((work_s,),) * len(waits_s),
        )
        for work_s in works_s
    )
    return ScheduleSide(
        name=name,
        rounds_s=tuple((wait_s + WORK_S + REST_S,) for wait_s in waits_s),
        time_per_iteration_s=1.0,
        idle_share=0.5,
        simulated_idle_share=0.5,
        simulated_s=1.0,
        stages=stages,
        **changes,
    )


def outcome(one: ScheduleSide, micro_batches: float) -> tuple[str, str]:
    found = judge([one], micro_batches)
    assert found is not None
    return found.outcome, found.why


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_the_bubble_of_the_formula_passes_and_one_off_by_more_of_a_step_fails(name: str, micro_batches: int) -> None:
    expected_s = WORK_S * (STAGES - 1) / micro_batches

    def beyond(part: float) -> ScheduleSide:
        """A step that is longer, or shorter, by this part of it, as the stages wait for so much."""
        return turns(name, expected_s + part * (expected_s + WORK_S + REST_S) / (1 - part))

    found = judge([beyond(0.0)], micro_batches)
    assert found is not None
    assert (found.outcome, found.why, found.uneven) == ("pass", "", 0.0)
    assert found.expected == found.measured.ratio == pytest.approx((STAGES - 1) / micro_batches)
    assert found.measured.interval.low < found.expected < found.measured.interval.high
    for sign in (1, -1):
        assert outcome(beyond(0.8 * sign * OFF), micro_batches) == ("pass", "")
        assert outcome(beyond(1.2 * sign * OFF), micro_batches) == ("fail", "")
        assert outcome(beyond(sign * OFF), micro_batches) == ("undecided", "")
        off = judge([beyond(1.2 * sign * OFF)], micro_batches)
        assert off is not None
        assert off.off.ratio == pytest.approx(1.2 * sign * OFF)
        assert off.off.interval.low < off.off.ratio < off.off.interval.high


def test_a_zero_bubble_is_at_most_half_of_the_formula() -> None:
    half_s = ZERO * WORK_S * (STAGES - 1) / 4
    assert outcome(turns("zero-bubble", 0.9 * half_s), 4) == ("pass", "")
    assert outcome(turns("zero-bubble", 0.1 * half_s), 4) == ("pass", "")
    assert outcome(turns("zero-bubble", 1.1 * half_s), 4) == ("fail", "")
    assert outcome(turns("zero-bubble", half_s), 4) == ("undecided", "")


def test_noise_beyond_the_limits_decides_nothing_and_neither_do_few_rounds() -> None:
    expected_s = WORK_S * (STAGES - 1) / 4
    assert outcome(turns("1f1b", expected_s, noise=100.0), 4) == ("undecided", "")
    one = turns("1f1b", expected_s)
    few = one.model_copy(update={"rounds_s": one.rounds_s[:5]})
    assert outcome(few, 4) == ("undecided", "")
    found = judge([few, one], 4)
    assert found is not None
    assert found.outcome == "pass", "of two jobs that agree the interval is over jobs"


def test_stages_that_are_not_equal_and_ranks_that_share_cores_decide_nothing() -> None:
    expected_s = WORK_S * (STAGES - 1) / 4
    assert outcome(turns("gpipe", expected_s, longer=0.9 * UNEVEN), 4) == ("pass", "")
    assert outcome(turns("gpipe", expected_s, longer=1.1 * UNEVEN), 4) == ("undecided", "stages aren't equal")
    own, shared = (
        MachineUsage(ranks=STAGES, threads_per_rank=1, cores=cores, processor_s=1.0, link_bytes=0.0)
        for cores in (STAGES, STAGES - 1)
    )
    assert outcome(turns("gpipe", expected_s, machine=own), 4) == ("pass", "")
    assert outcome(turns("gpipe", expected_s, machine=shared), 4) == ("undecided", "ranks share cores")


def test_what_nothing_is_asked_of_or_nothing_is_known_of_is_not_judged() -> None:
    assert judge([turns("message-driven", 1.0)], 4) is None
    assert judge([turns("gpipe", 1.0)], float("nan")) is None
    assert judge([], 4) is None
    one = turns("gpipe", 1.0)
    older = [stage.model_copy(update={"idle_s": (), "work_s": ()}) for stage in one.stages]
    assert judge([one.model_copy(update={"stages": tuple(older)})], 4) is None
    for odd in (0.0, -1.0, float("nan"), 1e308):
        stage = one.stages[0].model_copy(update={"work_s": ((odd,),) * len(one.rounds_s)})
        assert judge([one.model_copy(update={"stages": (stage, *one.stages[1:])})], 4) is None
