"""A tuner's choice is judged by the interval of its ratio to other ways over rounds: slower, as fast, or undecided."""

import random

import pytest

from engine.result.judges.choices import by_fastest, by_own, share_that_holds
from engine.result.schema.tuning import ModeTime, TunedShape

ROLES = ("forward", "input_gradient", "weight_gradient")
OWN = {"forward": "NT", "input_gradient": "NN", "weight_gradient": "TN"}
SEEDS = range(200)


def shape(slower: float, *, noise: float, rounds: int, seed: int, chosen_is_own: bool = False) -> TunedShape:
    """One whose choice takes so many times as long as PyTorch's own ways, which are the fastest too.

    noise: of each time, relative, beside what disturbs a whole round by a tenth.
    """
    drawing = random.Random(seed)
    disturbed = [drawing.gauss(1.0, 0.1) for _ in range(rounds)]

    def way(role: str, times: float, *, own: bool) -> ModeTime:
        s = tuple(max(0.1, of) * times * drawing.gauss(1.0, noise) for of in disturbed)
        return ModeTime.model_validate(
            {
                **{
                    "role": role,
                    "column_major": False,
                    "mode": OWN[role] if own else "NN",
                    "own": own,
                    "median_s": 1.0,
                },
                **{"low_s": min(s), "high_s": max(s), "flops_per_s": 1.0, "rounds": rounds, "by_round_s": s},
                **{"fastest": own, "chosen": own is chosen_is_own},
            }
        )

    ways = tuple(way(role, 1.0 if own else slower, own=own) for role in ROLES for own in (True, False))
    return TunedShape(
        m=8, n=8, k=8, dtype="fp32", layers=1, layer="a", forwards=2, movable=True, own_s=1.0, chosen_s=slower,
        best_s=1.0, times=ways,
    )  # fmt: skip


def outcomes(slower: float, *, noise: float = 0.01, rounds: int = 21) -> list[str]:
    return [by_own(shape(slower, noise=noise, rounds=rounds, seed=seed)).outcome for seed in SEEDS]


@pytest.mark.parametrize("slower", [1.05, 1.24])
def test_a_choice_that_is_five_per_cent_slower_or_more_fails(slower: float) -> None:
    found = outcomes(slower)
    assert found.count("fail") >= 0.95 * len(found)
    assert "pass" not in found


def test_a_choice_that_is_a_quarter_slower_fails_in_the_fewest_rounds_of_a_noisy_machine() -> None:
    """Seven, as the first of three looks; of six nothing is known yet."""
    assert set(outcomes(1.24, noise=0.05, rounds=6)) == {"undecided"}
    found = outcomes(1.24, noise=0.05, rounds=7)
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
    assert set(outcomes(1.24, rounds=5)) == {"undecided"}
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
