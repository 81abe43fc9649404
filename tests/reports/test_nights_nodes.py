"""Nodes of nights: which are slow, and whether they explain an episode, by jobs that are drawn."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from reports.nights.nodes import Explanation, NodeEffect, describe, explain, how_bad, node_effects
from reports.read.history import NODES, Night, NightJob
from systems.references import Key

NAMES = [f"x120{number}" for number in range(8)]
SINCE, NIGHTS, NOISE, SLOW = 60, 70, 0.015, 0.06
Draw = Callable[[np.random.Generator, int], Sequence[str]]
"""Nodes of a job, by the night."""


def key(test: str) -> Key:
    return Key("gpu", test, "", "", 4, "", "")


FIGURES = [(key(test), "figure") for test in "ABC"]


def job(nodes: Sequence[str], bad: float, test: str = "A", *, unit: str = "s") -> NightJob:
    value = math.exp(bad if unit == "s" else -bad)
    return NightJob(key(test), False, "", {"figure": (value, unit)}, {NODES: ", ".join(nodes)}, {}, 1.0)


def draw_nights(
    seed: int,
    *,
    draw: Draw = lambda random, night: random.choice(NAMES, 2, replace=False),
    slow: Mapping[str, float] | None = None,
    always: bool = False,
    regression: float = 0.0,
    tests: Sequence[str] = ("A", "B", "C"),
    jobs: int = 3,
) -> list[Night]:
    """Draw nights with so many jobs of each test. slow: nodes' effects since a night, or always. regression: of all
    jobs since then.
    """
    random, nights = np.random.default_rng(seed), []
    for number in range(NIGHTS):
        made = []
        for place, test in enumerate(jobs * list(tests)):
            nodes = list(draw(random, number))
            effect = max([0.0, *((slow or {}).get(node, 0.0) for node in nodes)]) if always or number >= SINCE else 0.0
            own = place % len(tests) + regression * (number >= SINCE)
            made.append(job(nodes, random.normal(own + effect, NOISE), test, unit="flop/s" if test == "B" else "s"))
        nights.append(Night(str(number), datetime(2026, 9, 1, tzinfo=UTC), made, {}))
    return nights


def value_of(nights: Sequence[Night]) -> Callable[[NightJob], float | None]:
    return how_bad(FIGURES, [job for night in nights for job in night.jobs])


def explained(nights: Sequence[Night]) -> Explanation:
    return explain(nights, SINCE, FIGURES)


def slow_names(effects: Sequence[NodeEffect]) -> set[str]:
    return {each.node for each in effects if each.is_slow}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("names", [("x1203",), ("x1203", "x1206")])
def test_slow_nodes_are_named_with_their_effect_and_explain_the_episode(nodes: int, names: Sequence[str]) -> None:
    inside, outcomes = 0, list[str]()
    for seed in range(20):
        draw: Draw = lambda random, night: random.choice(NAMES, nodes, replace=False)  # noqa: E731
        found = explained(draw_nights(seed, draw=draw, slow=dict.fromkeys(names, SLOW)))
        outcomes.append(found.outcome)
        if found.outcome == "explained":
            assert {each.node for each in found.slow} == {*names}
            assert found.without < found.size / 2
            inside += all(each.low <= SLOW <= each.high for each in found.slow)
    assert outcomes.count("explained") >= 18
    assert "not explained" not in outcomes
    assert inside >= 17, "intervals of 95 %"


def test_where_few_jobs_tell_it_is_unknown_and_hardly_ever_wrong() -> None:
    outcomes = [explained(draw_nights(seed, slow={"x1203": SLOW}, tests="A", jobs=1)).outcome for seed in range(100)]
    assert outcomes.count("explained") >= 30
    assert outcomes.count("not explained") <= 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slow", [{}, {"x1203": SLOW}])
@pytest.mark.parametrize("always", [False, True])
def test_what_got_slower_on_all_nodes_is_not_explained_by_a_slow_one(slow: Mapping[str, float], always: bool) -> None:
    found = [explained(draw_nights(seed, slow=slow, always=always, regression=SLOW)) for seed in range(20)]
    outcomes = [each.outcome for each in found]
    assert "explained" not in outcomes
    assert outcomes.count("not explained") >= 16
    for each in found:
        assert slow_names(each.effects) <= {*slow}
        assert each.size == pytest.approx(SLOW, abs=SLOW / 2)


def test_a_node_that_was_always_slow_and_is_drawn_more_often_explains_it() -> None:
    def draw(random: np.random.Generator, night: int) -> Sequence[str]:
        often = random.random() < (0.9 if night >= SINCE else 0.1)
        return ["x1203"] if often else [random.choice(NAMES[4:])]

    for seed in range(20):
        found = explained(draw_nights(seed, draw=draw, slow={"x1203": SLOW}, always=True))
        assert (found.outcome, slow_names(found.effects)) == ("explained", {"x1203"})


@pytest.mark.parametrize("nodes", [1, 3])
def test_without_a_slow_node_none_is_named(nodes: int) -> None:
    for seed in range(100):
        draw: Draw = lambda random, night: random.choice(NAMES, nodes, replace=False)  # noqa: E731
        nights = draw_nights(seed, draw=draw, jobs=1)
        effects = node_effects([[job for night in nights for job in night.jobs]], value_of(nights))
        assert len(effects) == len(NAMES)
        assert not slow_names(effects)


def test_a_node_is_not_slow_for_a_few_bad_jobs_however_bad() -> None:
    jobs = [job([node], 0.001 * place) for place, node in enumerate(10 * NAMES[:4])]
    bad = [job(["x1200"], 0.5) for _ in range(7)]
    for place, each in enumerate(bad):
        jobs.insert(5 * place + 2, each)
    effects = node_effects([jobs], how_bad([(key("A"), "figure")], jobs))
    (named,) = [each for each in effects if each.node == "x1200"]
    assert named.low > 0
    assert not slow_names(effects)


def test_moods_that_last_for_nights_are_no_nodes_where_nodes_stay_for_nights_too() -> None:
    named_by_jobs = 0
    for seed in range(50):
        random, mood, node, jobs = np.random.default_rng(seed), 0.0, "x1200", []
        for _ in range(NIGHTS):
            mood = 0.95 * mood + random.normal(0, 0.01)
            node = random.choice(NAMES[:3]) if random.random() < 0.1 else node
            jobs.append(job([node], mood + random.normal(0, 0.003)))
        effects = node_effects([jobs], value := how_bad([(key("A"), "figure")], jobs))
        assert not slow_names(effects)
        for each in effects:
            on, off = (
                [value(job) for job in jobs if (job.state[NODES] == each.node) is is_on] for is_on in (True, False)
            )
            error = math.sqrt(np.var(on) / len(on) + np.var(off) / len(off))
            named_by_jobs += np.mean(on) - np.mean(off) > 3 * error
    assert named_by_jobs > 10, "each job counted as one of its own would name nodes"


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda random, night: NAMES, "all jobs ran on the same nodes"),
        (lambda random, night: [], "don't tell their nodes"),
        (lambda random, night: [random.choice(NAMES[4:] if night >= SINCE else NAMES[:4])], "other nodes"),
        (lambda random, night: [f"{night}-{random.random()}"], "other nodes"),
    ],
)
def test_where_nothing_can_be_told_it_says_so(draw: Draw, words: str) -> None:
    found = explained(draw_nights(3, draw=draw, regression=SLOW))
    assert (found.outcome, found.slow) == ("unknown", ())
    assert words in describe(found)


def test_a_node_that_only_one_test_uses_is_not_blamed_for_what_got_slower_in_that_test_alone() -> None:
    random, nights = np.random.default_rng(5), []
    for number in range(NIGHTS):
        small = [job([random.choice(NAMES[:3])], random.normal(0, NOISE), "A") for _ in range(3)]
        large = [job(NAMES, random.normal(SLOW * (number >= SINCE), NOISE), "B") for _ in range(3)]
        nights.append(Night(str(number), datetime(2026, 9, 1, tzinfo=UTC), small + large, {}))
    found = explained(nights)
    assert found.outcome != "explained"
    assert {each.node for each in found.effects} <= {*NAMES[:3]}
    assert not found.slow


def test_nodes_of_too_few_jobs_are_not_tried() -> None:
    usual = [job([node], 0.001 * place, "A") for place, node in enumerate(4 * NAMES[:3])]
    rare = [job(["x1207"], 0.5), job(["x1200"], 0.0), job(["x1207"], 0.5)]
    tried = node_effects([usual + rare], how_bad([(key("A"), "figure")], usual))
    assert {each.node for each in tried} == {*NAMES[:3]}
    once = [job(["x1207"], 0.5)] * 5  # one run of jobs, which may be the time's
    tried = node_effects([usual + once], how_bad([(key("A"), "figure")], usual))
    assert {each.node for each in tried} == {*NAMES[:3]}


def test_the_words_have_nodes_effects_and_jobs() -> None:
    pair = [NodeEffect(node, 9, math.log(1.06), math.log(1.04), math.log(1.08)) for node in NAMES[:2]]
    fast = NodeEffect("x1207", 9, 0.0, -0.01, 0.01)
    words = describe(Explanation("explained", (*pair, fast), 0.05, 0.0))
    for part in ("x1200 and x1201", "6.0 %", "4.0 to 8.0", "9 jobs", "nothing is worse"):
        assert part in words
    assert "x1207" not in words
    assert "2.5 %" in describe(Explanation("explained", tuple(pair), 0.06, math.log(1.025)))
    assert describe(Explanation("not explained", (fast,), 0.05, 0.05)) == "nodes don't explain it"
