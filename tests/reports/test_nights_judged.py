"""References, verdicts, culprits, and what figures and changes of the machine are."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from reading import in_order
from sample_nights import FIRST, night_name

from reports.nights.culprit import culprit, what_changed
from reports.nights.episodes import find_episodes, group
from reports.nights.judge import FigureHistory, Judgement, is_judged, judge_nights, suspects
from reports.nights.levels import GIVEN_UP, Slowdown
from reports.nights.nodes import describe_nodes
from reports.nights.reference import make_series, reference_of
from reports.nights.report import OVER, night_reports, tell
from reports.read.history import History, Night, NightJob
from systems.references import CANARY, Key, References, digest, worse_by


def test_in_a_reference_every_night_counts_the_same_however_often_it_was_run():
    steady = [[1.0 + 0.001 * (number % 5)] for number in range(20)]
    reference = reference_of("s", [*steady, *[[1.5] * 5] * 5])
    assert (reference.median, reference.jobs) == (pytest.approx(1.002, abs=0.0015), 45)


def test_what_changed_is_what_was_never_so_before():
    before = [{"torch": "2.9", "nodes": "a"}, {"torch": "2.9", "nodes": "b"}]
    since = [{"torch": "2.10", "nodes": "b", "modules": "nccl"}]
    assert what_changed(before, since) == ["torch 2.9 -> 2.10", "modules unset -> nccl"]
    assert what_changed([], since) == []
    assert what_changed(before, [{"nodes": "c, a"}, {"nodes": "c, d"}])[0].startswith("nodes: c ")
    assert not what_changed(before, [{"nodes": "c"}, {"nodes": "d"}])[-1].startswith("nodes: c ")


KEY = Key("cpu", "Test", "", "1x1x1x1", 1, "fp32", "")


def a_job(**parts: float) -> NightJob:
    """Make a job. parts: what__which, as history.NightJob.parts has it."""
    by_name = {(*name.partition("__")[::2],): value for name, value in parts.items()}
    return NightJob(KEY, False, "", {}, {}, by_name, 0.0)


USUAL = {"compute": 1.0, "exposed__x": 0.2, "exposed__data": 0.1, "host__n0": 1.0, "host__n1": 1.0, "rate__x": 1e8}


def of_nights(*nights: dict[str, float], by_hand: Sequence[int] = ()) -> History:
    """Nights of one job each with these figures in seconds; of none, where another test ran."""
    kept = []
    for at, figures in enumerate(nights):
        key = KEY if figures else KEY._replace(test="Other")
        values = {name: (value, "s") for name, value in (figures or {"t": 1.0}).items()}
        chosen = {} if at in by_hand else {key.name: None}
        job = replace(a_job(), key=key, figures=values)
        kept.append(Night(night_name(at), FIRST + timedelta(days=at), [job], chosen))
    return History("s", tuple(kept))


def judged_all(history: History) -> dict[str, FigureHistory]:
    """By the name of the figure, with references of the first 30 nights."""
    return {one.figure: one for one in judgement(history).figures if one.key == KEY}


def judgement(history: History) -> Judgement:
    return judge_nights(history, references_of(history))


def references_of(history: History) -> References:
    series = tuple(make_series(replace(history, nights=history.nights[:30]), {}).values())
    return References(system="s", made="today", digest=digest(series), series=series)


RANDOM = np.random.default_rng(11)
SEEDED = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def drawn_anew():
    """Give every test the same draws, whichever ran before it."""
    RANDOM.bit_generator.state = SEEDED


def quiet(count: int, level: float = 1.0) -> list[dict[str, float]]:
    return [{"t": level * math.exp(RANDOM.normal(0, 0.005))} for _ in range(count)]


def nights_of(kind: str, count: int) -> list[dict[str, float]]:
    """Draw nights of 1.5 %: independent ones, with an autocorrelation of 0.5, or with a mood that the canary knows."""
    own, mood = RANDOM.normal(0, 0.015, (2, count))
    if kind == "autocorrelated":
        for at in range(1, count):
            own[at] = 0.5 * own[at - 1] + math.sqrt(0.75) * own[at]
    if kind == "common":
        return [{"t": math.exp(a / 3 + b), CANARY: math.exp(b)} for a, b in zip(own, mood, strict=True)]
    return [{"t": math.exp(each)} for each in own]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["independent", "autocorrelated", "common"])
def test_95_of_100_nights_without_a_change_lie_in_their_interval(kind):
    inside = nights = 0
    for _ in range(3):
        one = judged_all(of_nights(*nights_of(kind, 200)))["t"]
        said = [verdict for verdict in one.verdicts.values() if math.isfinite(verdict.low)]
        inside += sum(verdict.low <= 0 <= verdict.high for verdict in said)
        nights += len(said)
        assert all(verdict.value / verdict.usual - 1 == pytest.approx(verdict.change) for verdict in said)
    assert 0.91 < inside / nights < 0.985


def test_a_slowdown_that_was_given_up_explains_its_episode_and_does_not_come_back_by_itself():
    gone = [{}] * (GIVEN_UP + 2)
    given_up = judgement(of_nights(*quiet(60), *quiet(8, 1.1), *gone, *quiet(5, 1.1)))
    (one, *_) = given_up.figures
    assert one.verdicts[67].slowdown
    assert [one.verdicts[at].word for at in range(82, 87)] == ["same"] * 5
    episodes = [find_episodes(given_up, at) for at in (67, 67 + GIVEN_UP, 68 + GIVEN_UP)]
    assert [(episode.state, episode.ended) for (episode,) in episodes] == [
        ("open", None),
        ("open", None),
        ("explained", 68 + GIVEN_UP),
    ]
    (kept, *_) = judgement(of_nights(*quiet(60), *quiet(8, 1.1), *gone[2:], *quiet(5, 1.1))).figures
    assert kept.verdicts[80].slowdown


def test_slowdowns_of_the_same_work_are_one_episode():
    nights = [{"time_per_iteration": 1.02 * one["t"], "faster_half": one["t"]} for one in [*quiet(60), *quiet(20, 1.2)]]
    (episode,) = find_episodes(judgement(of_nights(*nights)), 79)
    assert sorted(figure.figure for figure in episode.figures) == ["faster_half", "time_per_iteration"]
    assert (episode.since, episode.state, episode.sizes[0]) == (60, "open", pytest.approx(0.2, abs=0.02))


def test_slowdowns_that_begin_weeks_apart_are_two_episodes_and_each_is_found_once():
    nights = [{"t": one["t"], "u": other["t"]} for one, other in zip(quiet(100), quiet(100), strict=True)]
    for at, night in enumerate(nights):
        night["t"] *= 1.1 if at >= 50 else 1.0
        night["u"] *= 1.2 if at >= 80 else 1.0
    judged = judgement(of_nights(*nights))
    assert [len(find_episodes(judged, at)) for at in (45, 70, 99)] == [0, 1, 2]
    assert [(one.number, one.since) for one in find_episodes(judged, 99)] == [(1, 50), (2, 80)]


def test_an_episode_closes_itself_and_what_came_back_is_the_same_as_before():
    judged = judgement(of_nights(*quiet(60), *quiet(12, 1.2), *quiet(30)))
    (episode,) = find_episodes(judged, 101)
    assert episode.state == "closed"
    assert 72 <= episode.ended <= 82
    assert not judged.detector.gains
    assert {judged.figures[0].verdicts[at].word for at in range(85, 102)} == {"same"}


def test_a_loss_that_creeps_is_told_as_a_slope_with_its_interval_and_its_beginning():
    creep = [{"t": one["t"] * math.exp(0.001 * at)} for at, one in enumerate(quiet(90))]
    judged = judgement(of_nights(*quiet(80), *creep))
    first, *_ = known = [find_episodes(judged, at) for at in range(80, 170)]
    assert not first
    assert {len(episodes) for episodes in known} == {0, 1}
    ((episode,),) = known[-1:]
    slope, low, high = episode.a_month
    assert episode.shape.kind == "creep"
    assert low < slope < high
    assert slope == pytest.approx(math.expm1(0.03), rel=0.15)
    assert episode.since == pytest.approx(80, abs=12)


def test_a_creep_that_came_back_is_told_as_the_slope_that_it_was():
    creep = [{"t": one["t"] * math.exp(0.001 * at)} for at, one in enumerate(quiet(90))]
    (episode,) = find_episodes(judgement(of_nights(*quiet(80), *creep, *quiet(40))), 209)
    slope, low, high = episode.a_month
    assert (episode.state, episode.shape.kind) == ("closed", "creep")
    assert 170 <= episode.ended <= 180
    assert low < math.expm1(0.03) < high or slope == pytest.approx(math.expm1(0.03), rel=0.15)


def test_a_step_that_is_sure_is_no_part_of_a_creep_that_began_long_before():
    creep = Slowdown(0, since=100, found=140, nights=21, changes=[(100, 0.05)])
    late = Slowdown(1, since=112, found=141, nights=21, changes=[(112, 0.05)])
    step = Slowdown(2, since=139, found=142, nights=3, changes=[(139, 0.3)])
    assert group([creep, late, step]) == [[creep, late], [step]]


def test_a_slope_is_of_a_month_however_many_nights_have_its_figure():
    creep = [{"t": one["t"] * math.exp(0.003 * at)} for at, one in enumerate(quiet(40))]
    history = of_nights(*(each for one in [*quiet(60), *creep] for each in (one, {}, {})))
    series = make_series(replace(history, nights=history.nights[:90]), {}).values()
    judged = judge_nights(history, References(system="s", made="today", digest=digest(series), series=tuple(series)))
    (episode,) = find_episodes(judged, len(history.nights) - 1)
    assert episode.shape.kind == "creep"
    assert episode.a_month[0] == pytest.approx(math.expm1(0.03), rel=0.15)


def test_nodes_that_explain_an_episode_are_named_in_it():
    drawn = ["abc"[at % 3] if at < 60 or at % 5 == 0 else "x" for at in range(100)]
    times = [one["t"] * (1.2 if node == "x" else 1.0) for one, node in zip(quiet(100), drawn, strict=True)]
    nights = of_nights(*({"t": each} for each in times)).nights
    for night, node in zip(nights, drawn, strict=True):
        night.jobs[0] = replace(night.jobs[0], state={"nodes": node})
    episodes = find_episodes(judgement(History("s", nights)), 99)
    assert [(one.state, [slow.node for slow in one.nodes.slow]) for one in episodes] == [("explained", ["x"])]


def test_the_end_of_an_episode_that_nodes_explain_names_them():
    drawn = ["x" if 60 <= at < 80 and at % 5 else "abc"[at % 3] for at in range(100)]
    times = [one["t"] * (1.2 if node == "x" else 1.0) for one, node in zip(quiet(100), drawn, strict=True)]
    nights = of_nights(*({"t": each} for each in times)).nights
    for night, node in zip(nights, drawn, strict=True):
        night.jobs[0] = replace(night.jobs[0], state={"nodes": node})
    (episode,) = find_episodes(judgement(History("s", nights)), 99)
    assert episode.ended is not None
    assert episode.state == "explained"
    said = tell(episode, nights, lambda key: key.test)
    assert describe_nodes(episode.nodes.slow) in said
    assert OVER["explained"] not in said


def test_what_is_not_known_of_an_open_episode_is_one_short_sentence():
    nights = of_nights(*quiet(60), *quiet(8, 1.1)).nights
    (episode,) = find_episodes(judgement(History("s", nights)), 67)
    said = tell(episode, nights, lambda key: key.test)
    sentences = re.split(r"(?<=[.)]) (?=[A-Z])", said)
    assert len(sentences) == 2
    assert in_order(said, "%", night_name(60), "Not known")
    assert float(re.search(r"([\d.]+) %", said)[1]) == pytest.approx(10, abs=1)
    for night in nights[60:]:
        night.jobs[0] = replace(night.jobs[0], state={"torch": "2.10"})
    for night in nights[:60]:
        night.jobs[0] = replace(night.jobs[0], state={"torch": "2.9"})
    (episode,) = find_episodes(judgement(History("s", nights)), 67)
    assert in_order(tell(episode, nights, lambda key: key.test), "torch 2.9 -> 2.10", "Not known")


def test_a_true_gain_is_better_with_its_night():
    (one,) = judged_all(of_nights(*quiet(60), *quiet(20, 0.9))).values()
    assert one.verdicts[79].word == "better"
    assert night_name(60) in one.verdicts[79].reason


def test_references_made_anew_since_it_began_explain_an_episode():
    history = of_nights(*quiet(60), *quiet(40, 1.2))
    series = tuple(make_series(replace(history, nights=history.nights[61:]), {}).values())
    judged = judge_nights(history, References(system="s", made="today", digest=digest(series), series=series))
    (episode,) = find_episodes(judged, 99)
    assert (episode.since, episode.state, episode.ended) == (60, "explained", episode.found)
    assert judged.figures[0].verdicts[99].word == "same"


def test_nights_that_people_started_ran_no_canary_and_miss_none():
    nights = [one | {CANARY: one["t"]} for one in quiet(62)]
    del nights[60][CANARY], nights[61][CANARY]
    assert 60 not in judged_all(of_nights(*nights, by_hand=[60, 61]))[CANARY].verdicts
    missed = judged_all(of_nights(*nights, by_hand=[60]))[CANARY].verdicts
    assert missed[61].word == "unknown"


def test_gains_in_stages_leave_what_is_expected_where_it_was():
    one = judged_all(of_nights(*quiet(60), *quiet(12, 1.12), *quiet(12, 1.08)))["t"]
    assert one.verdicts[83].slowdown
    assert one.verdicts[83].usual == pytest.approx(1.0, abs=0.01)
    assert one.verdicts[83].change == pytest.approx(0.08, abs=0.02)


def test_a_night_is_suspected_by_what_the_canary_leaves_of_it_and_by_the_present_level():
    moods = RANDOM.normal(0, 0.03, 100)
    nights = [
        {"t": one["t"] * math.exp(mood), CANARY: math.exp(mood)} for one, mood in zip(quiet(100), moods, strict=True)
    ]
    for night in nights[92:]:
        night["t"] *= 1.1
    history = of_nights(*nights)
    known = references_of(history)

    def suspected(t: float, canary: float) -> bool:
        tonight = of_nights({"t": t, CANARY: canary}).nights[0].jobs
        return suspects(history, known, tonight) == [KEY]

    assert suspected(1.16, 1.0)
    assert not suspected(1.1, 1.0)
    assert not suspected(1.15, 1.04)


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"compute": 1.3}, ("compute", "+23.1 %")),
        ({"compute": 1.3, "peak": 5e10}, ("compute", "matrix products", "50.0 %")),
        ({"exposed__x": 0.35, "compute": 1.01}, ("the link", "axis x")),
        ({"exposed__x": 0.35, "rate__x": 8e7}, ("the link", "20.0 %")),
        ({"exposed__data": 0.4}, ("the link", "axis data")),
        ({"host__n1": 1.6, "exposed__x": 0.8}, ("one node: n1", "+60.0 %")),
        ({"host__n0": 1.5, "host__n1": 1.5, "compute": 1.5}, ("compute",)),
        ({}, ()),
    ],
)
def test_the_culprit_is_named(now, named):
    before = [a_job(**USUAL, peak=1e11)] * 3
    found = culprit("WeakScaling", [a_job(**({**USUAL, "peak": 1e11} | now))], before)
    assert in_order(found, *named) if named else not found


def test_a_slow_node_is_named_although_every_night_has_other_nodes():
    def named(*tonight: NightJob, test: str = "WeakScaling") -> str:
        return culprit(test, tonight, before)

    before = [a_job(compute=1.0, **{f"host__a{night}": 1.0, f"host__b{night}": 1.02}) for night in range(5)]
    slow = a_job(compute=1.4, host__x=1.0, host__y=1.4, host__z=1.01)
    for test in ("WeakScaling", CANARY):
        assert in_order(named(slow, test=test), "one node: y ", "+39.3 %")
    once = a_job(compute=1.08, host__x=1.0, host__y=1.2, host__z=1.01)
    others = [a_job(compute=1.08, **{f"host__c{night}": 1.08, f"host__d{night}": 1.09}) for night in range(5)]
    assert "one node" not in named(once, *others)
    assert "one node" not in named(a_job(compute=1.4, host__x=1.4, host__y=1.42)), "both are as slow"
    before = [a_job(**USUAL)] * 3
    assert "one node: n9" in named(a_job(compute=1.6, host__n0=1.0, host__n1=1.0, host__n9=1.6))
    before = [a_job(compute=1.2, exposed__x=0.1, host__n0=1.2, host__n1=1.0)] * 3
    unlike = a_job(compute=1.3, exposed__x=0.2, host__n0=1.2, host__n1=1.3)
    assert in_order(named(unlike), "n1", "+30.0 %"), "of unlike work the one that takes longer than it did"


def test_a_test_of_one_thing_names_it_and_without_any_time_there_is_no_culprit():
    for test, part in (("Bandwidth", "the link"), ("Peak", "compute"), (CANARY, "the machine")):
        assert part in culprit(test, [a_job()], [a_job()])
    nothing = a_job(compute=0.0, exposed__x=0.0)
    assert culprit("WeakScaling", [nothing], [nothing]) == ""


@pytest.mark.parametrize(
    ("figure", "unit", "judged"),
    [
        ("time_per_iteration", "s", True),
        ("hardware_flops_per_s", "flop/s", False),
        ("best_flops_per_s", "flop/s", True),
        ("compute", "s", False),
        ("half_size", "B", False),
        ("paired_ratio_low", "x", False),
        ("paired_ratio", "x", True),
        ("communication_hidden", "%", False),
        ("speed_up_oar_ors", "x", False),
        ("step_by_bound", "x", False),
        ("step_by_bound_none", "x", False),
    ],
)
def test_figures_are_judged_once_each(figure, unit, judged):
    assert is_judged(figure, unit, frozenset({figure, "time_per_iteration"})) == judged
    assert (worse_by("s"), worse_by("flop/s"), worse_by("%")) == (1, -1, 0)


def test_a_figure_that_was_away_for_long_and_came_back_better_is_judged():
    judged = judgement(of_nights(*quiet(60), *[{}] * 100, *quiet(30, 0.9)))
    (figure,) = [one for one in judged.watched if one.key == KEY]
    (gain,) = judged.gains(figure)
    assert gain.since == pytest.approx(160, abs=2)
    assert figure.verdicts[189].word == "better"


def test_a_drift_without_an_episode_is_a_slope_with_its_interval():
    nights = [{"t": one["t"] * math.exp(0.0002 * at)} for at, one in enumerate(quiet(220))]
    history = of_nights(*nights)
    (last,) = night_reports(history, references_of(history))
    assert not last.episodes
    (told,) = [remark for remark in last.remarks if "a month" in remark]
    drift, slope, low, high = map(float, re.findall(r"([\d.]+) %", told))
    assert drift == pytest.approx(100 * math.expm1(0.0002 * 160), rel=0.2)
    assert low < 0.6 < high
    assert slope == pytest.approx(0.6, rel=0.3)
