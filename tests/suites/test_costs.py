"""Commands that redo published claims select tests that are there, and cost what the data says."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from running import ROOT

import systems
from engine.errors import UsageError
from engine.peers.registry import COMPARISONS
from engine.published.claims import ANY, Claim, Redo, costs, figures
from suites import costs as written
from suites.base.listings import by_figure
from suites.base.series import points, read

CLAIMS = [claim for figure in figures() for claim in figure.claims if claim.redo]
OF_SERIES = set(read())
"""Studies whose points series.yaml has; suites of the same names run them."""


def test_costs_are_those_of_cases_that_can_run_and_of_fixtures_once() -> None:
    cases = [{"node_hours": 2.0, "skipped": ""}, {"node_hours": 5.0, "skipped": "too few nodes"}]
    fixture = {"unique_name": "text", "node_hours": 0.25}
    tests = [{"display_name": name, "cases": cases, "fixture_jobs": [fixture]} for name in ("a", "b")]
    assert written.node_hours(tests) == {"a": 2.0, "b": 2.0, "text": 0.25}
    assert written.node_hours([{"display_name": "a", "cases": cases[1:], "fixture_jobs": []}]) == {}


def test_figures_of_papers_have_a_sum_of_the_jobs_of_a_verdict_each_test_once() -> None:
    def check(name: str, nodes: int, series: str = "par4d-weak", why: str | None = None) -> Any:
        point = next(one for one in points("baselines", "perlmutter") if one.series.name == series)
        hours = {"nodes": nodes, "node_hours": 0.5 * nodes, "cannot_run": lambda: why}
        return SimpleNamespace(display_name=name, point=point, **hours)

    given = [check("a %$repeat_no=0", 16), check("a %$repeat_no=1", 16), check("b", 8), check("c", 0)]
    (told,) = by_figure([*given, check("d", 4, "node"), check("e", 4, why="no")])
    assert re.findall(r"(\d+) tests, .* ([\d.]+) node-hours with --repeat (\d)", told) == [("2", "36.0", "3")]
    assert by_figure(given[3:]) == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}-{claim.place}")
def test_a_claim_names_suites_series_and_peers_that_are_there(claim: Claim) -> None:
    machine = "local" if claim.system == ANY else claim.machine
    assert machine in systems.names()
    for redo in claim.redo:
        assert (ROOT / "suites" / f"{redo.suite}.py").exists()
        if redo.suite in OF_SERIES:
            assert _selected(redo, machine)


def _selected(redo: Redo, system: str) -> bool:
    """Return whether a selection has a point, and each of its peers runs there. Of a pattern the part for a point."""
    pattern = redo.only.partition(".*")[0]
    series = [point.series for point in points(redo.suite, system) if re.search(pattern, str(point))]
    if redo.peer and not any(re.search(redo.peer, name) for name in COMPARISONS):
        return False
    return any(not one.peers or any(re.search(redo.peer, name) for name in one.peers) for one in series)


def test_a_series_or_peer_that_is_missing_is_found() -> None:
    there = Redo(suite="baselines", only="weak-64-gpt-5b", peer="fsdp2")
    assert _selected(there, "frontier")
    assert not _selected(there.model_copy(update={"only": "weak-65"}), "frontier")
    assert not _selected(there.model_copy(update={"peer": "no-such-peer"}), "frontier")
    assert not _selected(there, "summit")


def test_every_command_of_a_claim_is_in_the_file_of_costs() -> None:
    assert {" ".join(words) for words in written.commands(CLAIMS)} == set(costs())
    assert all(min(tests.values()) > 0 for tests in costs().values())


def test_a_command_costs_what_the_file_says_and_a_change_is_told() -> None:
    """The cheapest; all of them every week."""
    words = ("reframe", "--system", "summit", "-c", "suites/p2p.py")
    hours = written.node_hours(written.describe(words))
    assert hours == costs()[" ".join(words)]
    other = {name: 2 * each for name, each in hours.items()}
    told = written.differences(dict(costs()) | {" ".join(words): other, "reframe -c another": hours})
    assert len(told) == 2
    assert written.differences(costs()) == []


def test_a_selection_without_tests_is_an_error() -> None:
    with pytest.raises(UsageError, match="no-such-series"):
        written.describe(("reframe", "--system", "summit", "-c", "suites/p2p.py", "-n", "no-such-series"))
    with pytest.raises(UsageError, match="--chekc"):
        written.main(["--chekc"])


def test_costs_of_some_suites_alone_are_written_anew_and_the_others_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Sequence[str]] = []

    def describe(words: Sequence[str]) -> list[dict[str, Any]]:
        asked.append(words)
        case = {"node_hours": 7.0, "skipped": ""}
        return [{"display_name": "another", "cases": [case], "fixture_jobs": []}]

    monkeypatch.setattr(written, "describe", describe)
    monkeypatch.setattr(written, "COSTS", tmp_path / "costs.json")
    assert written.main(["kernel_tuning"]) == 0
    assert {Path(words[words.index("-c") + 1]).stem for words in asked} == {"kernel_tuning"}
    anew = {" ".join(words): {"another": 7.0} for words in asked}
    assert json.loads((tmp_path / "costs.json").read_text()) == dict(costs()) | anew
    with pytest.raises(UsageError, match="kernel_tunnig"):
        written.main(["kernel_tunnig"])


def test_the_same_test_with_other_settings_costs_another_job() -> None:
    """Planted: a job without tuned products stands beside the tuned one, of the same name."""
    (compute,) = (one for one in CLAIMS if (one.where, one.name) == ("section V-C", "compute of a batch"))
    words = {" ".join(one): list(one) for one in compute.commands}
    assert len(words) == 2
    assert sum("tune_matmul=no" in one for one in words.values()) == 1
    assert compute.node_hours == pytest.approx(sum(sum(costs()[one].values()) for one in words))
    assert len({tuple(costs()[one]) for one in words}) == 1


@pytest.mark.weekly
def test_all_commands_cost_what_the_file_says() -> None:
    assert written.main(["--check"]) == 0
