"""Trainers' tables of uncalibrated accelerators: the rules as committed, the fit, the verdict and what it must find."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import systems
from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.planning.document import describe, origin
from engine.published import Number, select
from engine.simulator.machine import ATTENTION, Fitted, MachineModel
from engine.validation import trainers
from engine.validation.trainer_rows import FILE, Limits, TrainerRow, judge, measured_s, rows, rules
from engine.validation.trainers import TracedRow, fit, machine_of, trace_row

LIMITS = Limits(median=0.15, held=0.9)
SHARES = {"products": 0.6, "attention": 0.3, "memory": 0.4}


def row(off: float = 0.0, system: str = "h100", **other: object) -> TrainerRow:
    """Row that is predicted by so much too long, with an interval of 10 %."""
    known = {
        "source": "made up",
        "system": system,
        "model": "mpt-7b",
        "devices": 8,
        "sequence": 2048,
        "sequences": 48,
        "micro_batch": 6,
        "recomputed": "none",
        "measured_s": 1.0,
        "predicted_s": 1 + off,
        "low_s": (1 + off) / 1.1,
        "high_s": (1 + off) * 1.1,
        "by_sheets_s": 0.7,
        "use": "judged",
    }
    return TrainerRow.model_validate(known | other)


def published(model: str, devices: int, sequence: int, system: str = "H100") -> Number:
    (found,) = (
        one
        for one in rows()
        if (one.system, one.model, one.devices, one.sequence) == (system, model, devices, sequence)
    )
    return found


def test_the_rules_are_the_committed_ones() -> None:
    given = rules()
    assert (given.limits.median, given.limits.held) == (0.15, 0.9)
    assert [(one.system, one.model, one.devices, one.sequence) for one in given.fitted] == [
        ("H100", "MPT-1B", 8, 512),
        ("H100", "MPT-1B", 8, 65536),
        ("H100", "MPT-13B", 8, 1024),
        ("H100", "MPT-13B", 8, 32768),
        ("H100", "MPT-13B", 64, 2048),
        ("A100", "MPT-1B", 8, 2048),
    ]
    assert given.numbers == {"H100": ("products", "attention", "memory"), "A100": ("products",)}
    assert Counter((one.system, given.choose_use(one)) for one in rows()) == {
        ("H100", "judged"): 33,
        ("H100", "of a fitted network"): 14,
        ("H100", "fitted"): 5,
        ("A100", "judged"): 7,
        ("A100", "fitted"): 1,
        ("H100 96GB", "judged"): 4,
    }
    judged = {one.model for one in rows() if one.system == "H100" and given.choose_use(one) == "judged"}
    assert judged == {"MPT-760M", "MPT-3B", "MPT-7B", "MPT-30B", "MPT-70B"}


def test_a_rule_that_names_no_published_row_is_refused(tmp_path: Path) -> None:
    data = yaml.safe_load(FILE.read_text())
    data["fitted"][0]["sequence"] = 513
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(UsageError, match="MPT-1B on 8 at 513"):
        rules(tmp_path / "rules.yaml")
    (tmp_path / "seven.yaml").write_text(yaml.safe_dump(data | {"fitted": data["fitted"] * 2}))
    with pytest.raises(UsageError, match="at most 6"):
        rules(tmp_path / "seven.yaml")


def test_the_parameters_of_every_published_row_are_those_of_the_catalogue_s_network() -> None:
    printed = select(paper="llm-foundry", metric="parameters")
    assert len(printed) == 52 + 8
    for one in printed:
        network = lookup(one.model.lower())
        assert network.parameters + (one.sequence - network.sequence) * network.hidden == one.value, one  # type: ignore


def test_the_published_rates_agree_with_the_published_utilisation() -> None:
    """MFU by the README's own formula, whose peak is the data sheet's."""
    for rate in select(paper="llm-foundry", metric="tokens_per_s"):
        about = {name: getattr(rate, name) for name in ("system", "model", "devices", "sequence")}
        (share,) = select(paper="llm-foundry", metric="mfu", **about)
        (parameters,) = select(paper="llm-foundry", metric="parameters", **about)
        network = lookup(rate.model.lower())
        attention = 4 * network.layers * network.hidden * rate.sequence  # type: ignore[attr-defined,operator]
        flops = 3 * (2 * parameters.value + attention) * rate.value
        peak = systems.load(rate.system.lower()).device.peak_flops["bf16"].value
        assert flops / (rate.devices * peak) == pytest.approx(share.si, abs=2e-3), rate  # type: ignore[operator]


def test_a_fit_finds_the_planted_numbers_and_a_planted_wrong_row_moves_them() -> None:
    machine = MachineModel.of(systems.load("h100"), "bf16", None)
    planted = machine.reaching(SHARES)
    asked = [
        published("MPT-1B", 8, 512).model_copy(
            update={"model": model, "sequence": sequence, "micro_batch": micro, "batch_tokens": 8 * micro * sequence}
        )
        for model, sequence, micro in (("MPT-125M", 512, 56), ("MPT-7B", 512, 16), ("MPT-125M", 16384, 2))
    ]
    traced = [trace_row(one, rules()) for one in asked]
    told = [_timed(one, one.on(planted)) for one in traced]
    assert fit(told, tuple(SHARES), machine) == pytest.approx(SHARES, abs=0.005)
    wrong = [_timed(told[0], 1.3 * told[0].on(planted)), *told[1:]]
    assert fit(wrong, tuple(SHARES), machine) != pytest.approx(SHARES, abs=0.02)
    with pytest.raises(ValueError, match="3 numbers"):
        fit(told[:2], tuple(SHARES), machine)


def _timed(traced: TracedRow, time_s: float) -> TracedRow:
    tokens = traced.number.batch_tokens or 0
    return replace(traced, number=traced.number.model_copy(update={"value": tokens / time_s}))


def test_a_planted_wrong_row_lies_outside_of_its_interval() -> None:
    good = [row(0.01 * place) for place in range(8)]
    (verdict,) = judge(good, LIMITS)
    assert (verdict.judged, verdict.held, verdict.close) == (8, 8, "pass")
    assert verdict.median == pytest.approx(0.035)
    assert verdict.by_sheets == pytest.approx(0.3)
    (verdict,) = judge([*good[1:], row(0.5)], LIMITS)
    assert (verdict.held, verdict.close, verdict.holds) == (7, "undecided", "undecided")


@pytest.mark.parametrize(
    ("off", "count", "close", "holds"),
    [(0.02, 40, "pass", "pass"), (0.14, 40, "pass", "fail"), (0.2, 40, "fail", "fail"), (0.2, 3, "undecided", "fail")],
)
def test_a_limit_has_three_outcomes(off: float, count: int, close: str, holds: str) -> None:
    (verdict,) = judge([row(off)] * count + [row(9.0, use="fitted"), row(9.0, use="of a fitted network")], LIMITS)
    assert (verdict.judged, verdict.close, verdict.holds) == (count, close, holds)


def test_each_system_is_judged_alone() -> None:
    found = judge([row(0.1), row(0.3, system="a100")], LIMITS)
    assert [(one.system, one.median) for one in found] == [("h100", pytest.approx(0.1)), ("a100", pytest.approx(0.3))]


def test_what_a_kind_reaches_counts_only_where_nobody_has_calibrated_and_in_its_format() -> None:
    system = systems.load("h100")
    reached = system.device.reached["bf16"]
    machine = MachineModel.of(system, "bf16", None)
    assert machine.fitted == Fitted(products=reached.products.value), "the spread stays that of any such machine"
    assert (machine.attention, machine.sweeps) == (reached.attention.value, reached.memory.value)
    assert machine.empirical_peak == machine.peak_flops
    fitted = [MachineModel.of(systems.load(name), "bf16", None) for name in systems.names() if _is_fitted(name)]
    assert {one.name for one in fitted} >= {"alps", "frontier", "perlmutter", "perlmutter80"}
    for other in (MachineModel.of(system, "fp32", None), *fitted):
        assert (other.attention, other.sweeps) == (ATTENTION, 1.0)
    assert systems.load("perlmutter80").device.reached, "its card has what its own fitted numbers come before"
    known = origin(system, None, simulated=True)
    assert known.by_kind
    assert "systems/devices" in describe(known)
    assert not origin(systems.load("perlmutter80"), None, simulated=True).by_kind
    assert not origin(system, None, simulated=False).by_kind


def _is_fitted(name: str) -> bool:
    return systems.load(name).performance is not None


@pytest.mark.parametrize(("model", "sequence"), [("MPT-760M", 2048), ("MPT-7B", 2048), ("MPT-3B", 65536)])
def test_rows_of_networks_that_nothing_was_fitted_to_are_predicted_within_the_limit(model: str, sequence: int) -> None:
    number = published(model, 8, sequence)
    assert rules().choose_use(number) == "judged"
    traced = trace_row(number, rules())
    assert traced.on(machine_of(number)) == pytest.approx(measured_s(number), rel=rules().limits.median)
    assert traced.on(machine_of(number, by_sheets=True)) < 0.75 * measured_s(number)


@pytest.mark.weekly
def test_the_files_have_the_fitted_numbers_and_the_verdict_is_as_the_page_says() -> None:
    traced: Sequence[TracedRow] = [trace_row(number, rules()) for number in rows()]
    for system, numbers in trainers.refit(traced, rules()).items():
        reached = systems.load(system.lower()).device.reached["bf16"]
        assert {name: getattr(reached, name).value for name in numbers} == pytest.approx(numbers, rel=0.005)
    found = judge(trainers.predict(traced), rules().limits)
    assert [(one.system, one.judged, one.held, one.close) for one in found] == [
        ("h100", 33, 31, "pass"),
        ("a100", 7, 6, "pass"),
        ("h100-96gb", 4, 2, "undecided"),
    ]
    assert [one.median for one in found] == pytest.approx([0.021, 0.027, 0.094], abs=0.005)
