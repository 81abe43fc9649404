"""Claims of the papers: every figure has its entry, and rests on numbers that are published."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine import published
from engine.errors import UsageError
from engine.published.claims import Claim, _all_figures, costs, figures
from engine.published.claims.tolerance import TOLERANCES, band, value_of

EVERY = [claim for figure in figures() for claim in figure.claims]
DRAWINGS = {
    "axonn-ipdps22": {"Fig. 1", "Fig. 2", "Table I"},
    "axonn-sc24": {"Fig. 1", "Fig. 3", "Fig. 4", "Table II"},
    "colossal-ai": {"Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Fig. 9", "Table 2"},
    "par4d": {"Fig. 1", "Fig. 2", "Fig. 5", "Fig. 6", "Table I", "Table II"},
}
"""Figures that claim nothing: drawings of algorithms, and tables of settings."""
FIGURES = {"axonn-ipdps22": 11, "axonn-sc24": 11, "colossal-ai": 14, "par4d": 12}
TABLES = {
    "axonn-ipdps22": ("I", "II"),
    "axonn-sc24": ("I", "II", "III"),
    "colossal-ai": ("1", "2", "3"),
    "par4d": ("I", "II", "III"),
}
FIGURE: Mapping[str, Any] = {
    "where": "Table III",
    "says": "It is fast.",
    "claims": [
        {
            "kind": "number",
            "system": "Frontier",
            "better": "higher",
            "numbers": [{"where": "Table III", "metric": "hardware_flops_per_s", "system": "Frontier"}],
            "redo": [{"suite": "weak_scaling"}],
        }
    ],
}


def written(folder: Path, *entries: object, **fields: object) -> Path:
    claim = FIGURE["claims"][0] | fields
    (folder / "axonn-sc24.yaml").write_text(yaml.safe_dump(list(entries) or [{**FIGURE, "claims": [claim]}]))
    return folder


def read(folder: Path, **fields: object) -> Claim:
    _all_figures.cache_clear()
    ((claim,),) = (figure.claims for figure in figures("axonn-sc24", written(folder, **fields)))
    return claim


def test_every_figure_and_table_of_a_paper_claims_something_or_is_a_drawing() -> None:
    for paper, drawings in DRAWINGS.items():
        printed = {f"Fig. {number}" for number in range(1, FIGURES[paper] + 1)}
        printed |= {f"Table {number}" for number in TABLES[paper]}
        places = {figure.where for figure in figures(paper)}
        assert printed <= places | drawings
        assert not places & drawings


def test_each_paper_has_its_figures_once_each() -> None:
    places = Counter((figure.paper, figure.where) for figure in figures())
    assert max(places.values()) == 1
    assert Counter(paper for paper, _ in places) == {
        "axonn-ipdps22": 11,
        "axonn-sc24": 13,
        "colossal-ai": 13,
        "llm-foundry": 2,
        "par4d": 10,
        "torchtitan": 2,
    }
    assert max(Counter((claim.paper, claim.place) for claim in EVERY).values()) == 1
    assert figures("axonn-4d-arxiv") == figures("par4d")
    with pytest.raises(UsageError, match="axon-sc24"):
        figures("axon-sc24")


def test_every_claim_has_a_tolerance_and_something_to_judge() -> None:
    assert {claim.kind for claim in EVERY} == set(TOLERANCES)
    for claim in EVERY:
        assert bool(claim.targets) != (claim.status == "not printed in the paper"), claim.place
        for number in (number for target in claim.targets for number in target.readings):
            low, high = band(claim.kind, number, claim.out_of)
            ends = value_of(claim.kind, number, claim.out_of)
            assert low < ends[0] <= ends[1] < high
    assert all(tolerance.reason for tolerance in TOLERANCES.values())


def test_every_tolerance_is_that_of_its_kind() -> None:
    """A rate or time 10 %, a share 5 points, a ratio 5 % of it; ranges and bounds at their ends."""
    (rate,) = published.select(metric="hardware_flops_per_s", where="Table III", system="Frontier", devices=512)
    assert band("number", rate) == pytest.approx((36.36e15, 44.44e15))
    (time,) = published.select(paper="par4d", metric="exposed_s", framework="ZeRO-3")
    assert band("number", time) == pytest.approx((67.41, 82.39))
    (share,) = published.select(paper="par4d", where="section IV-C")
    assert band("share", share) == pytest.approx((0.14, 0.24))
    (ratio,) = published.select(paper="axonn-ipdps22", metric="speed_up", over="DeepSpeed")
    assert band("ratio", ratio) == pytest.approx((1.121, 1.239))
    (of_ten, _) = published.select(metric="efficient_of_10")
    assert band("share", of_ten, 10) == pytest.approx((0.85, 0.95))
    (lost,) = published.select(paper="colossal-ai", metric="over_1d", framework="Colossal-AI 2.5D", devices=8)
    assert band("share", lost) == pytest.approx((-0.169, -0.069))
    (saved,) = published.select(paper="axonn-sc24", gained="layout by the performance model")
    assert band("share", saved) == pytest.approx((0.08, 0.5))
    (at_least,) = published.select(paper="axonn-ipdps22", metric="months_saved")
    assert band("number", at_least) == (pytest.approx(0.9 * at_least.si), float("inf"))


def test_a_paper_that_contradicts_itself_has_both_readings() -> None:
    both = {(claim.paper, claim.where) for claim in EVERY if claim.otherwise}
    assert both == {
        ("axonn-ipdps22", "section V-B"), ("axonn-ipdps22", "Fig. 9"),
        ("axonn-sc24", "section I"), ("axonn-sc24", "Table I"), ("axonn-sc24", "section V-C"), ("axonn-sc24", "Fig. 5"),
        ("axonn-sc24", "Fig. 6"), ("axonn-sc24", "Fig. 7"), ("axonn-sc24", "Fig. 8"), ("axonn-sc24", "Table III"),
        ("axonn-sc24", "Fig. 9"), ("colossal-ai", "Table 3"),
        ("par4d", "abstract"), ("par4d", "Fig. 3"), ("par4d", "Fig. 9"), ("par4d", "Fig. 10"), ("par4d", "Fig. 11"),
    }  # fmt: skip
    for claim in EVERY:
        for target in claim.targets:
            assert len(target.readings) in (0, 1 + len(claim.otherwise))


def test_readings_are_of_the_same_thing_and_differ() -> None:
    for claim in (claim for claim in EVERY if claim.otherwise):
        for first, *others in (target.readings for target in claim.targets):
            for other in others:
                assert type(first.devices) is not type(other.devices) or first.devices == other.devices, claim.place
                assert not (first.over and other.over) or first.over == other.over, claim.place
        printed = [(number.value, number.highest, number.bound) for number in claim.numbers]
        for reading in claim.otherwise:
            assert printed != [(number.value, number.highest, number.bound) for number in reading.numbers]


def test_nobody_is_ahead_of_who_is_ahead() -> None:
    for claim in EVERY:
        pairs = [target.comparison for target in claim.targets if target.comparison]
        assert len(set(pairs)) == len(pairs)
        assert not {(pair.behind, pair.ahead, pair.at) for pair in pairs} & set(pairs), claim.place


def test_no_verdict_waits_for_what_the_data_can_tell() -> None:
    """A retired machine, and what another study brings."""
    gone = [claim for claim in EVERY if claim.system == "Summit"]
    assert all(claim.status or claim.retired for claim in gone)
    assert {claim.status for claim in EVERY} == {
        "", "comes with another study", "quoted from others", "not printed in the paper", "beyond the queue",
        "not built", "the engine can't express selective checkpointing", "the engine can't express fp8",
    }  # fmt: skip
    assert not any(claim.status == "not built" for claim in EVERY if claim.paper in ("par4d", "axonn-sc24"))


def test_what_a_paper_quotes_from_others_says_whose_it_is() -> None:
    quoted = {(claim.paper, claim.place): claim.note for claim in EVERY if claim.status == "quoted from others"}
    rows = ("FORGE", "Dash et al.", "MegaScale", "TPUs of Google")
    assert set(quoted) == {("axonn-sc24", f"Table I, {row}") for row in rows}
    assert all(quoted.values())


def test_every_command_has_a_cost() -> None:
    known = costs()
    runnable = [claim for claim in EVERY if not (claim.status or claim.retired) and claim.system != "any"]
    assert len(runnable) > 60
    for claim in runnable:
        assert all(known[" ".join(words)] for words in claim.commands), claim.place
        assert claim.node_hours is not None
    (table,) = (figure for figure in figures("axonn-sc24") if figure.where == "Table III")
    assert table.node_hours == sum(sum(known[" ".join(words)].values()) for words in set(table.commands))
    assert len(table.commands) == 3 < len(table.claims)
    (times,) = (figure for figure in figures("axonn-sc24") if figure.where == "Fig. 6")
    assert times.node_hours == table.node_hours, "which runs some points for two claims"
    (products,) = (figure for figure in figures("axonn-sc24") if figure.where == "section VI-C")
    of_machines = sum(sum(known[" ".join(words)].values()) for words in products.commands[:3])
    assert products.node_hours == pytest.approx(of_machines)
    assert products.commands[3] == ("reframe", "-c", "suites/peak.py", "-n", "CountedFlops")


def test_a_claim_is_what_its_file_says(tmp_path: Path) -> None:
    claim = read(tmp_path)
    assert (claim.paper, claim.place, claim.machine, claim.retired) == ("axonn-sc24", "Table III", "frontier", False)
    assert [target.readings[0].devices for target in claim.targets] == [512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert claim.commands == (("reframe", "--system", "frontier", "-c", "suites/weak_scaling.py"),)
    assert read(tmp_path, name="b", redo=[{"suite": "baselines", "only": "a-64", "peer": "ddp"}]).commands[0][-2:] == (
        "-n",
        "a-64.*ddp",
    )


ORDER = {
    "kind": "order",
    "by": "time_s",
    "numbers": [],
    "orders": [{"ahead": "a", "behind": ["b", "c"], "at": ["1", "2"]}],
}


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"numbers": [{"metric": "hardware_flops_per_s", "devices": 513}]}, "513"),
        ({"numbers": [{"metrics": "hfu"}]}, "metrics"),
        ({"numbers": []}, "not printed in the paper"),
        ({"numbers": 2 * FIGURE["claims"][0]["numbers"]}, "twice"),
        ({"status": "not printed in the paper"}, "not printed in the paper"),
        ({"status": "soon"}, "status"),
        ({"kind": "share"}, "hardware_flops_per_s"),
        ({"kind": "rate"}, "kind"),
        ({"better": "faster"}, "better"),
        ({"gain": True}, "gain"),
        ({"redo": []}, "suites"),
        ({"redo": [{"suite": "../weak_scaling"}]}, "suite"),
        ({"otherwise": [{"numbers": [{"where": "section I", "metric": "speed_up"}], "because": "b"}]}, "as many"),
        ({"orders": ORDER["orders"]}, "orders"),
        (ORDER | {"by": ""}, "by"),
        (ORDER | {"better": "neither"}, "higher or lower"),
        ({"speed": 3}, "speed"),
    ],
)
def test_a_faulty_claim_is_refused_by_its_file_and_fault(fault: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"axonn-sc24\.yaml.*{re.escape(named)}"):
        read(tmp_path, **fault)


def test_a_place_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Table III twice"):
        figures(folder=written(tmp_path, FIGURE, FIGURE))


def test_two_claims_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two claims of Table III"):
        figures(folder=written(tmp_path, {**FIGURE, "claims": 2 * FIGURE["claims"]}))


@pytest.mark.parametrize("text", ["{}", "- where: Table I", "- 3", "[{"])
def test_a_file_that_lists_no_figures_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a-paper.yaml").write_text(text)
    if text == "{}":
        assert figures(folder=tmp_path) == ()
        return
    with pytest.raises(UsageError, match=r"a-paper\.yaml"):
        figures(folder=tmp_path)


@pytest.mark.parametrize("text", ["", "[1]", '{"reframe": 3}', '{"reframe": {"a": "much"}}'])
def test_a_damaged_file_of_costs_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "node_hours.json").write_text(text)
    with pytest.raises(UsageError, match=r"node_hours\.json.*suites\.costs"):
        costs(tmp_path / "node_hours.json")


def test_a_digest_keeps_what_a_verdict_rests_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: another number, direction, machine or tolerance; and words, suites or a status, which change nothing."""
    whole = read(tmp_path)
    first = whole.numbers[0]
    words = {"note": "b", "tolerance": 0.5}
    wrong = first.model_copy(update={"value": first.value + 0.1})
    changed = [
        whole.model_copy(update={"numbers": (wrong, *whole.numbers[1:])}),
        whole.model_copy(update={"numbers": whole.numbers[1:]}),
        whole.model_copy(update={"better": "neither"}),
        whole.model_copy(update={"system": "Alps"}),
        whole.model_copy(update={"name": "rates"}),
    ]
    same = [
        whole.model_copy(update={"status": "not built", "note": "a word", "redo": ()}),
        whole.model_copy(update={"numbers": tuple(one.model_copy(update=words) for one in whole.numbers)}),
    ]
    assert len({claim.digest for claim in (whole, *changed)}) == 6
    assert {claim.digest for claim in same} == {whole.digest}
    assert re.fullmatch("[0-9a-f]{64}", whole.digest)
    before = whole.digest
    monkeypatch.setitem(TOLERANCES, "number", TOLERANCES["number"]._replace(amount=0.2))
    assert whole.digest != before
