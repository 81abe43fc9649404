"""The gate of the planner's order: planted orders that it must pass, fail, and leave undecided."""

import random

import pytest
from prove_planned import CANDIDATES, MODELS, POINTS, Compared, Point, judged, predict, taus

WORDS = CANDIDATES[4]


def compared(order: list[int], *, spread: float = 0.01, seed: int = 0) -> Compared:
    """Candidates that are predicted to take 1, 2, 3 ... seconds, and take that in this order."""
    draw = random.Random(seed)
    rounds = {
        word: [(place + 1) * (1 + draw.uniform(-spread, spread)) for _ in range(4)]
        for word, place in zip(WORDS, order, strict=True)
    }
    return Compared({word: place + 1.0 for place, word in enumerate(WORDS)}, rounds)


RIGHT, TURNED = list(range(8)), list(range(8))[::-1]


def test_the_points_are_twenty_networks_ranks_and_batches() -> None:
    assert len(POINTS) == len({point.name for point in POINTS}) == 20
    assert {point.model for point in POINTS} == set(MODELS)


@pytest.mark.parametrize(
    ("right", "turned", "firsts", "order"),
    [(20, 0, "pass", "pass"), (18, 2, "pass", "undecided"), (0, 20, "fail", "fail"), (17, 0, "undecided", "pass")],
    ids=["all right", "two turned", "all turned", "three missing"],
)
def test_each_outcome(right: int, turned: int, firsts: str, order: str) -> None:
    found = [compared(RIGHT, seed=seed) for seed in range(right)] + [
        compared(TURNED, seed=seed) for seed in range(turned)
    ]
    assert judged(found) == (firsts, order)


def test_pairs_within_the_spread_do_not_count() -> None:
    assert compared(RIGHT).pairs == (28, 28)
    assert compared(TURNED).pairs == (-28, 28)
    assert compared(RIGHT, spread=1.0).pairs[1] < 28
    assert taus([compared(TURNED)])[0] == pytest.approx(-1)


def test_each_candidate_is_predicted() -> None:
    found = predict(Point("small", 4, 16))
    assert tuple(found) == WORDS
    assert len(set(found.values())) == len(WORDS)
    assert all(0 < seconds < 60 for seconds in found.values())
