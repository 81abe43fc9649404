"""Verdicts on published claims: by an interval over jobs, the tolerance of the claim's kind, and the machine."""

from math import inf, nan

import pytest

from engine.published.claims import Claim, Target, figures
from engine.published.claims.tolerance import TOLERANCES
from engine.result.gate import NOTHING_KNOWN, Interval
from engine.result.judges.reproduction import (
    GONE,
    NO_WORSE,
    ONE_END,
    Judgement,
    Measured,
    Verdict,
    by_reading,
    judge,
    outdated,
    overall,
)


def claim(paper: str, where: str, name: str = "") -> Claim:
    (found,) = (one for figure in figures(paper) if figure.where == where for one in figure.claims if one.name == name)
    return found


RATES = claim("axonn-sc24", "Table III", "rates on Frontier")
SMALLEST = RATES.targets[0]
"""40.4 Pflop/s on 512 GCDs."""
TIMES = claim("axonn-sc24", "Fig. 6", "times on Frontier")
SAVED = claim("par4d", "Fig. 3", "all-gathers hidden")
SPEED_UP = claim("par4d", "Fig. 12", "over ZeRO-3 on Frontier")
OUR_PEAK = claim("axonn-sc24", "Table III", "shares on Alps")
LOSS = claim("par4d", "Fig. 8", "GPT")
FASTEST = claim("par4d", "Fig. 11", "fastest on Perlmutter")
EFFICIENCY = claim("axonn-sc24", "Fig. 9", "efficiency of GPT-640B")
WIDER = claim("colossal-ai", "Table 3", "gains over 1D")
SUMMIT = claim("axonn-ipdps22", "Fig. 9", "own shares")
SUMMIT_ORDER = claim("axonn-ipdps22", "Fig. 5", "order")
PETA = 1e15


def verdict(of: Claim, target: Target, low: float, high: float, jobs: int = 3, machine: str = "") -> Judgement:
    return judge(of, target, Measured(Interval(low, high), jobs, machine or of.machine))


@pytest.mark.parametrize(
    ("low", "high", "expected", "off"),
    [
        (36.361, 44.439, "reproduces", 0.0),
        (36.359, 40.0, "can't tell", 0.0),
        (40.0, 44.441, "can't tell", 0.0),
        (44.441, 50.0, "better", 0.1),
        (60.6, 70.0, "better", 0.5),
        (30.0, 36.359, "differs", -0.1),
        (10.0, 20.2, "differs", -0.5),
        (30.0, 50.0, "can't tell", 0.0),
    ],
)
def test_a_rate_reproduces_within_10_percent(low: float, high: float, expected: Verdict, off: float) -> None:
    found = verdict(RATES, SMALLEST, low * PETA, high * PETA)
    assert (found.verdict, found.off) == (expected, pytest.approx(off, abs=1e-3))


def test_what_is_no_worse_but_perhaps_better_says_so() -> None:
    assert verdict(RATES, SMALLEST, 40 * PETA, 50 * PETA).why == NO_WORSE
    assert verdict(RATES, SMALLEST, 30 * PETA, 40 * PETA).why != NO_WORSE
    published = TIMES.targets[0].readings[0].value
    assert verdict(TIMES, TIMES.targets[0], 0.5 * published, published).why == NO_WORSE
    assert verdict(TIMES, TIMES.targets[0], published, 2 * published).why != NO_WORSE
    assert verdict(LOSS, LOSS.targets[0], 0.5, 1.0).why != NO_WORSE


def test_less_time_is_better() -> None:
    published = TIMES.targets[0].readings[0].value
    assert verdict(TIMES, TIMES.targets[0], 0.91 * published, 1.09 * published).verdict == "reproduces"
    faster = verdict(TIMES, TIMES.targets[0], 0.7 * published, 0.8 * published)
    assert (faster.verdict, faster.off) == ("better", pytest.approx(-0.2))
    slower = verdict(TIMES, TIMES.targets[0], 1.2 * published, 1.3 * published)
    assert (slower.verdict, slower.off) == ("differs", pytest.approx(0.2))


@pytest.mark.parametrize(
    ("of", "low", "high", "expected", "off"),
    [
        (SAVED, 0.1401, 0.2399, "reproduces", 0.0),
        (SAVED, 0.2401, 0.3, "better", 0.0501),
        (SAVED, 0.1, 0.1399, "differs", -0.0501),
        (SAVED, 0.1399, 0.2, "can't tell", 0.0),
        (SPEED_UP, 4.751, 5.249, "reproduces", 0.0),
        (SPEED_UP, 5.251, 9.0, "better", 0.0502),
        (SPEED_UP, 4.0, 4.749, "differs", -0.0502),
        (LOSS, 0.951, 1.049, "reproduces", 0.0),
        (LOSS, 0.5, 0.8, "differs", -0.2),
        (LOSS, 1.2, 1.3, "differs", 0.2),
    ],
)
def test_shares_are_judged_by_points_and_ratios_by_parts(
    of: Claim, low: float, high: float, expected: Verdict, off: float
) -> None:
    found = verdict(of, of.targets[0], low, high)
    assert (found.verdict, found.off) == (expected, pytest.approx(off, abs=1e-4))


def test_an_order_is_judged_by_its_sign() -> None:
    (first, *_) = FASTEST.targets
    assert first.comparison is not None
    assert first.comparison[:2] == ("Par4D/AxoNN", "Megatron-LM")
    assert verdict(FASTEST, first, 1e-9, 5.0).verdict == "reproduces"
    behind = verdict(FASTEST, first, -2.0, -0.5)
    assert (behind.verdict, behind.off) == ("differs", -0.5)
    assert verdict(FASTEST, first, -0.1, 5.0).verdict == "can't tell"


def test_one_job_tells_nothing() -> None:
    for jobs, expected in ((1, "can't tell"), (2, "reproduces")):
        assert verdict(RATES, SMALLEST, 40 * PETA, 41 * PETA, jobs).verdict == expected
        assert verdict(FASTEST, FASTEST.targets[0], 1.0, 2.0, jobs).verdict == expected


@pytest.mark.parametrize("interval", [NOTHING_KNOWN, Interval(nan, nan), Interval(-inf, inf)])
def test_an_interval_without_bounds_tells_nothing(interval: Interval) -> None:
    for of in (RATES, SAVED, SPEED_UP, FASTEST):
        assert judge(of, of.targets[0], Measured(interval, 3, of.machine)).verdict == "can't tell"


def test_what_is_no_measurement_is_refused() -> None:
    with pytest.raises(ValueError, match="5 to 4 of 3"):
        verdict(RATES, SMALLEST, 5, 4)
    with pytest.raises(ValueError, match="of 0"):
        verdict(RATES, SMALLEST, 4, 5, jobs=0)


@pytest.mark.parametrize(
    ("of", "low", "high", "expected"),
    [
        (RATES, 40 * PETA, 41 * PETA, "not run here"),
        (OUR_PEAK, 0.30, 0.31, "not run here"),
        (SAVED, 0.01, 0.02, "reproduces"),
        (SAVED, 0.8, 0.9, "reproduces"),
        (SAVED, -0.2, -0.1, "differs"),
        (SAVED, -0.1, 0.1, "can't tell"),
        (SPEED_UP, 1.1, 1.2, "reproduces"),
        (SPEED_UP, 0.8, 0.9, "differs"),
        (FASTEST, 0.1, 0.2, "reproduces"),
        (SUMMIT, 0.5, 0.52, "machine retired"),
        (SUMMIT_ORDER, 0.1, 0.2, "reproduces"),
    ],
)
def test_another_machine_tells_who_is_ahead_alone(of: Claim, low: float, high: float, expected: Verdict) -> None:
    found = verdict(of, of.targets[0], low, high, machine="vcluster")
    assert found.verdict == expected
    assert found.by_sign == (expected in ("reproduces", "differs", "can't tell"))


def test_a_published_loss_has_to_be_one_elsewhere_too() -> None:
    """1D is published to be ahead of 2.5D on 8 GPUs, by a negative gain."""
    (lost,) = (one for one in WIDER.targets if one.readings[0].value < 0)
    assert verdict(WIDER, lost, -0.3, -0.2, machine="alps").verdict == "reproduces"
    assert verdict(WIDER, lost, 0.2, 0.3, machine="alps").verdict == "differs"


def test_losses_are_judged_by_their_tolerance_on_every_machine() -> None:
    found = verdict(LOSS, LOSS.targets[0], 0.99, 1.01, machine="local")
    assert (found.verdict, found.by_sign) == ("reproduces", False)
    assert verdict(LOSS, LOSS.targets[0], 1.2, 1.3, machine="local").verdict == "differs"


def test_a_paper_is_held_to_the_nearest_of_its_readings() -> None:
    """More than 90 % is printed; the same section's times are 70 %."""
    (target,) = EFFICIENCY.targets
    found = verdict(EFFICIENCY, target, 0.68, 0.72)
    assert (found.verdict, found.reading) == ("reproduces", 1)
    measured = Measured(Interval(0.68, 0.72), 3, "frontier")
    assert [one.verdict for one in by_reading(EFFICIENCY, target, measured)] == ["differs", "reproduces"]
    high = verdict(EFFICIENCY, target, 0.91, 0.95)
    assert (high.verdict, high.reading) == ("reproduces", 0)
    assert verdict(EFFICIENCY, target, 0.4, 0.5).verdict == "differs"


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.99, 1.01, "can't tell"), (1.2, 1.3, "differs"), (1.04, 1.06, "can't tell")]
)
def test_what_is_at_fault_reproduces_nothing(low: float, high: float, expected: Verdict) -> None:
    measured = Measured(Interval(low, high), 3, "local", fault="off by more than rounding")
    found = judge(LOSS, LOSS.targets[0], measured)
    assert found.verdict == expected
    assert (found.why == "off by more than rounding") == (low == 0.99)


@pytest.mark.parametrize(("of", "machine"), [(FASTEST, FASTEST.machine), (FASTEST, "vcluster"), (SAVED, "vcluster")])
def test_what_is_at_fault_says_of_nobody_that_he_is_ahead(of: Claim, machine: str) -> None:
    measured = Measured(Interval(0.24, 0.26), 3, machine)
    assert judge(of, of.targets[0], measured).verdict == "reproduces"
    found = judge(of, of.targets[0], measured._replace(fault="slipped"))
    assert (found.verdict, found.off, found.why) == ("can't tell", 0.0, "slipped")


@pytest.mark.parametrize(("low", "told"), [(40 * PETA, False), (30 * PETA, False), (60 * PETA, True)])
def test_more_jobs_tell_nothing_of_an_interval_without_an_end(low: float, told: bool) -> None:
    found = verdict(RATES, SMALLEST, low, inf)
    assert (found.verdict == "better") == told
    assert (ONE_END in found.why) != told
    assert found.why != NO_WORSE


@pytest.mark.parametrize(("low", "high"), [(40 * PETA, 41 * PETA), (1 * PETA, 2 * PETA)])
def test_what_lacks_measurements_tells_nothing(low: float, high: float) -> None:
    measured = Measured(Interval(low, high), 3, RATES.machine, lack="1 of 5 points")
    assert judge(RATES, SMALLEST, measured)[:3] == ("can't tell", 0.0, "1 of 5 points")


def test_without_a_measurement_the_reason_is_told() -> None:
    assert judge(RATES, SMALLEST, None)[:3] == ("not run here", 0.0, "")
    assert judge(SUMMIT, SUMMIT.targets[0], None).verdict == "machine retired"
    unbuilt = claim("par4d", "abstract", "over Megatron-LM").model_copy(update={"status": "not built"})
    assert judge(unbuilt, unbuilt.targets[0], None)[:3] == ("not run here", 0.0, "not built")


@pytest.mark.parametrize(
    ("verdicts", "expected", "judged"),
    [
        (["reproduces", "better"], "reproduces", 2),
        (["better", "better"], "better", 2),
        (["reproduces", "differs", "not run here"], "differs", 2),
        (["reproduces", "not run here"], "can't tell", 1),
        (["not run here", "can't tell"], "can't tell", 0),
        (["not run here", "machine retired"], "not run here", 0),
        (["machine retired", "machine retired"], "machine retired", 0),
        ([], "not run here", 0),
    ],
)
def test_a_figure_reproduces_if_every_target_does(verdicts: list[Verdict], expected: Verdict, judged: int) -> None:
    assert overall([Judgement(one) for one in verdicts]) == (expected, judged, len(verdicts), 0, ())


BEYOND = Judgement("not run here", why="beyond the queue", obstacle="beyond the queue")
RETIRED = Judgement("machine retired", obstacle=GONE)
OPEN = Judgement("not run here")


@pytest.mark.parametrize(
    ("judgements", "expected"),
    [
        ([Judgement("reproduces"), BEYOND, BEYOND], ("reproduces", 1, 3, 2, ("beyond the queue",))),
        ([Judgement("better"), RETIRED], ("better", 1, 2, 1, (GONE,))),
        ([Judgement("differs"), BEYOND, RETIRED], ("differs", 1, 3, 2, ("beyond the queue", GONE))),
        ([Judgement("reproduces"), BEYOND, OPEN], ("can't tell", 1, 3, 1, ("beyond the queue",))),
        ([Judgement("reproduces"), BEYOND, Judgement("can't tell")], ("can't tell", 1, 3, 1, ("beyond the queue",))),
        ([BEYOND, RETIRED], ("not run here", 0, 2, 0, ())),
        ([RETIRED, RETIRED], ("machine retired", 0, 2, 0, ())),
        ([BEYOND, Judgement("can't tell")], ("can't tell", 0, 2, 0, ())),
    ],
)
def test_what_nothing_here_can_judge_leaves_no_figure_open(judgements: list[Judgement], expected: object) -> None:
    """Targets that could be measured and weren't do, and a figure of which nothing is told stays as it is."""
    assert overall(judgements) == expected


def test_whoever_is_ahead_on_a_machine_that_is_gone_could_be_judged_elsewhere() -> None:
    order = claim("axonn-ipdps22", "Fig. 5", "order")
    found = judge(order, order.targets[0], None)
    assert (found.verdict, found.obstacle) == ("machine retired", "")
    assert judge(SUMMIT, SUMMIT.targets[0], None).obstacle == GONE
    unbuilt = RATES.model_copy(update={"status": "not built"})
    assert judge(unbuilt, SMALLEST, None).obstacle == "not built"
    assert judge(RATES, SMALLEST, None).obstacle == ""


def test_a_tolerance_changed_after_a_verdict_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = verdict(RATES, SMALLEST, 40 * PETA, 41 * PETA)
    assert (kept.digest, kept.tolerance) == (RATES.digest, 0.1)
    assert outdated(RATES, kept) is None
    wrong = RATES.numbers[0].model_copy(update={"value": 40.5})
    other = outdated(RATES.model_copy(update={"numbers": (wrong, *RATES.numbers[1:])}), kept)
    assert other is not None
    monkeypatch.setitem(TOLERANCES, "number", TOLERANCES["number"]._replace(amount=0.25))
    told = outdated(RATES, kept)
    assert told is not None
    assert "0.1" in told
    assert "0.25" in told
    assert told != other
