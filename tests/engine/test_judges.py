"""Judges of the tuner's choices and of bubbles: each outcome, by times that have it."""

import random
from typing import Any

import pytest

from engine.result.judges.bubble import OFF, UNEVEN, ZERO, judge
from engine.result.judges.choices import by_fastest, by_own, share_that_holds
from engine.result.schema.contest import ScheduleSide, StageTimes
from engine.result.schema.step import MachineUsage
from engine.result.schema.tuning import ModeTime, TunedShape

ROLES = ("forward", "input_gradient", "weight_gradient")
OWN = {"forward": "NT", "input_gradient": "NN", "weight_gradient": "TN"}
SEEDS = range(200)


def shape(slower: float, *, noise: float, rounds: int, seed: int, chosen_is_own: bool = False) -> TunedShape:
    """Return a shape whose choice takes that many times as long as PyTorch's own ways, which are the fastest too.

    noise: of each time, relative, beside what disturbs a whole round by a tenth.
    """
    drawing = random.Random(seed)
    disturbed = [drawing.gauss(1.0, 0.1) for _ in range(rounds)]

    def way(role: str, times: float, *, own: bool) -> ModeTime:
        s = tuple(max(0.1, of) * times * drawing.gauss(1.0, noise) for of in disturbed)
        record = {"role": role, "column_major": False, "mode": OWN[role] if own else "NN", "own": own, "median_s": 1.0}
        record |= {"low_s": min(s), "high_s": max(s), "flops_per_s": 1.0, "rounds": rounds, "by_round_s": s}
        return ModeTime.model_validate(record | {"fastest": own, "chosen": own is chosen_is_own})

    ways = tuple(way(role, 1.0 if own else slower, own=own) for role in ROLES for own in (True, False))
    return TunedShape(
        m=8, n=8, k=8, dtype="fp32", layers=1, layer="a", forwards=2, movable=True, own_s=1.0, chosen_s=slower,
        best_s=1.0, times=ways,
    )  # fmt: skip


def outcomes(slower: float, *, noise: float = 0.01, rounds: int = 21) -> list[str]:
    return [by_own(shape(slower, noise=noise, rounds=rounds, seed=seed)).outcome for seed in SEEDS]


@pytest.mark.parametrize(("slower", "noise", "rounds"), [(1.05, 0.01, 21), (1.24, 0.01, 21), (1.24, 0.05, 7)])
def test_a_choice_that_is_five_per_cent_slower_or_more_fails(slower: float, noise: float, rounds: int) -> None:
    found = outcomes(slower, noise=noise, rounds=rounds)
    assert found.count("fail") >= 0.95 * len(found)
    assert "pass" not in found


@pytest.mark.parametrize(("noise", "rounds"), [(0.01, 7), (0.05, 7), (0.05, 21), (0.2, 21), (0.2, 84)])
def test_noise_alone_never_fails_a_choice_more_often_than_its_confidence_allows(noise: float, rounds: int) -> None:
    found = outcomes(1.0, noise=noise, rounds=rounds)
    assert found.count("fail") <= 0.05 * len(found)


def test_noise_that_hides_a_slower_choice_is_undecided_and_no_pass() -> None:
    found = outcomes(1.05, noise=0.2, rounds=7)
    assert found.count("undecided") >= 0.8 * len(found)
    assert found.count("pass") <= 0.05 * len(found)


def test_what_is_pytorchs_own_takes_as_long_by_definition() -> None:
    own = shape(1.0, noise=0.5, rounds=6, seed=0, chosen_is_own=True)
    assert by_own(own) == by_fastest(own) == (1.0, (1.0, 1.0))
    assert by_own(own).outcome == "pass"


def test_too_few_rounds_or_none_that_were_kept_are_undecided() -> None:
    assert set(outcomes(1.24, rounds=6, noise=0.05)) == {"undecided"}, "six are too few for the first of three looks"
    old = shape(1.24, noise=0.01, rounds=21, seed=0)
    ways = tuple(way.model_copy(update={"by_round_s": (), "fastest": False}) for way in old.times)
    old = old.model_copy(update={"times": ways})
    assert by_own(old).outcome == by_fastest(old).outcome == "undecided"


@pytest.mark.parametrize(("slower", "outcome"), [(1.0, "pass"), (1.24, "fail")])
def test_rounds_of_several_tunings_count_together(slower: float, outcome: str) -> None:
    often = [shape(slower, noise=0.002, rounds=5, seed=seed) for seed in range(3)]
    assert {by_own(one).outcome for one in often} == {"undecided"}
    assert by_own(*often).outcome == outcome
    own = shape(1.0, noise=0.5, rounds=5, seed=0, chosen_is_own=True)
    assert by_own(own, *often[1:]).outcome == ("pass" if outcome == "pass" else "undecided"), "another choice each time"


def test_of_choices_that_hold_only_those_are_counted_that_do_so_for_certain() -> None:
    sure, slow, unknown = (shape(by, noise=0.005, rounds=of, seed=0) for by, of in ((1.0, 21), (1.2, 21), (1.0, 5)))
    assert share_that_holds([by_fastest(one) for one in (sure, sure, slow, unknown)]) == (0.5, 0.75)


WORK_S, REST_S, STAGES = 8.0, 0.5, 3
NOISE_S = (0.0, 0.01, -0.01, 0.005, -0.005, 0.002, -0.002)
"""Relative errors of the rounds of a job."""


def turns(name: str, idle_s: float, *, noise: float = 1.0, longer: float = 0.0, **changes: Any) -> ScheduleSide:
    """Make a job of a schedule whose stages wait that long. longer: by that part the last stage works longer."""
    waits_s = [idle_s + noise * off_s for off_s in NOISE_S]
    works_s = [WORK_S * (1 + longer * (stage == STAGES - 1)) for stage in range(STAGES)]
    shares: dict[str, Any] = {"idle_share": 0.5, "simulated_idle_share": 0.5}
    idle_s = tuple((wait_s,) for wait_s in waits_s)
    kept: dict[str, Any] = shares | {"task_s": {}, "most_held": 1, "most_pending": 0, "idle_s": idle_s}
    stages = tuple(StageTimes(work_s=((work_s,),) * len(waits_s), **kept) for work_s in works_s)
    rounds_s = tuple((wait_s + WORK_S + REST_S,) for wait_s in waits_s)
    times: dict[str, Any] = {"rounds_s": rounds_s, "time_per_iteration_s": 1.0, "simulated_s": 1.0}
    return ScheduleSide(name=name, stages=stages, **times, **shares, **changes)


def bubble(one: ScheduleSide, micro_batches: float) -> tuple[str, str]:
    found = judge([one], micro_batches)
    assert found is not None
    return found.outcome, found.why


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_the_bubble_of_the_formula_passes_and_one_off_by_more_of_a_step_fails(name: str, micro_batches: int) -> None:
    expected_s = WORK_S * (STAGES - 1) / micro_batches

    def beyond(part: float) -> ScheduleSide:
        """Make a step that is longer, or shorter, by this part of it, as the stages wait for that."""
        return turns(name, expected_s + part * (expected_s + WORK_S + REST_S) / (1 - part))

    found = judge([beyond(0.0)], micro_batches)
    assert found is not None
    assert (found.outcome, found.why, found.uneven) == ("pass", "", 0.0)
    assert found.expected == found.measured.ratio == pytest.approx((STAGES - 1) / micro_batches)
    assert found.measured.interval.low < found.expected < found.measured.interval.high
    for sign in (1, -1):
        assert bubble(beyond(0.8 * sign * OFF), micro_batches) == ("pass", "")
        assert bubble(beyond(1.2 * sign * OFF), micro_batches) == ("fail", "")
        assert bubble(beyond(sign * OFF), micro_batches) == ("undecided", "")
        off = judge([beyond(1.2 * sign * OFF)], micro_batches)
        assert off is not None
        assert off.off.ratio == pytest.approx(1.2 * sign * OFF)
        assert off.off.interval.low < off.off.ratio < off.off.interval.high


def test_a_zero_bubble_is_at_most_half_of_the_formula() -> None:
    half_s = ZERO * WORK_S * (STAGES - 1) / 4
    assert bubble(turns("zero-bubble", 0.9 * half_s), 4) == ("pass", "")
    assert bubble(turns("zero-bubble", 0.1 * half_s), 4) == ("pass", "")
    assert bubble(turns("zero-bubble", 1.1 * half_s), 4) == ("fail", "")
    assert bubble(turns("zero-bubble", half_s), 4) == ("undecided", "")


def test_noise_beyond_the_limits_decides_nothing_and_neither_do_few_rounds() -> None:
    expected_s = WORK_S * (STAGES - 1) / 4
    assert bubble(turns("1f1b", expected_s, noise=100.0), 4) == ("undecided", "")
    one = turns("1f1b", expected_s)
    few = one.model_copy(update={"rounds_s": one.rounds_s[:5]})
    assert bubble(few, 4) == ("undecided", "")
    found = judge([few, one], 4)
    assert found is not None
    assert found.outcome == "pass", "of two jobs that agree the interval is over jobs"


def test_stages_that_are_not_equal_and_ranks_that_share_cores_decide_nothing() -> None:
    expected_s = WORK_S * (STAGES - 1) / 4
    assert bubble(turns("gpipe", expected_s, longer=0.9 * UNEVEN), 4) == ("pass", "")
    assert bubble(turns("gpipe", expected_s, longer=1.1 * UNEVEN), 4) == ("undecided", "stages aren't equal")
    own, shared = (
        MachineUsage(ranks=STAGES, threads_per_rank=1, cores=cores, processor_s=1.0, link_bytes=0.0)
        for cores in (STAGES, STAGES - 1)
    )
    assert bubble(turns("gpipe", expected_s, machine=own), 4) == ("pass", "")
    assert bubble(turns("gpipe", expected_s, machine=shared), 4) == ("undecided", "ranks share cores")


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
