"""Figures of the proof on the page of nights: every outcome shows, and the words have the file's own figures."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import simulate_nights as simulated
import yaml
from reading import in_order
from sample_nights import referred, slowed, store

from engine.errors import UsageError
from reports.nights import detector, page, proof
from reports.page import Paragraph, Table
from reports.read.history import history


def loss(share: float, asked: float, outcome: str) -> dict[str, Any]:
    return {"share": share, "asked": asked, "outcome": outcome}


def row(noise: str, episodes: float, outcome: str = "pass", **more: Any) -> dict[str, Any]:
    known = {"noise": noise, "jobs": 1, "years": 20, "asked": 1, "episodes_a_year": episodes, "outcome": outcome}
    return known | more


STEP, CREEP = "3 % at once, by night 60", "10 % over 90 nights, by night 100"
ROWS = [
    row("gauss", 0.15, found={STEP: loss(0.98, 0.3, "pass"), CREEP: loss(0.91, 0.8, "undecided")}),
    row("weekly3", 0.21, found={STEP: loss(0.07, 0.3, "fail")}),
    row("walk", 1.37, "fail"),
    row("walk", 0.33, canary=True),
    row("sticky3", 1.5, "undecided", asked=3),
    row("gauss", 0.4, drift=0.0025),
    row("measured", 0.15, found={STEP: loss(0.22, 0.0, "pass")}),
    row("measured", 0.16, jobs=3, found={STEP: loss(0.64, 0.0, "pass")}),
]


def read(folder: Path, rows: list[Mapping[str, Any]]) -> proof.Proof:
    file = folder / "proof.yaml"
    file.write_text(yaml.safe_dump({"rows": rows}, sort_keys=False))
    found = proof.proof(file)
    assert found
    return found


def cells_of(table: Table) -> list[dict[str, str]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.text for cell in cells), strict=True)) for cells in table.rows()]


def test_every_row_and_every_loss_has_its_outcome(tmp_path: Path) -> None:
    quiet, losses = map(cells_of, proof.tables(read(tmp_path, ROWS)))
    assert [one["Outcome"] for one in quiet] == ["pass", "pass", "fail", "pass", "undecided", *["pass"] * 3]
    most = ["0.15", "0.21", "1.37", "0.33", "1.50", "0.40", "0.15", "0.16"]
    assert [one["Episodes a year, at most"] for one in quiet] == most
    assert [one["Asked"] for one in quiet] == ["1", "1", "1", "1", "3", "1", "1", "1"]
    assert len({one["Noise"] for one in quiet}) == 8, "the canary, the drift and more jobs are told apart"
    assert [one["Loss"] for one in losses] == [STEP, CREEP, STEP, STEP, STEP]
    assert [one["Found"] for one in losses] == ["98.0 %", "91.0 %", "7.0 %", "22.0 %", "64.0 %"]
    assert [one["Asked"] for one in losses] == ["30.0 %", "80.0 %", "30.0 %", "0.0 %", "0.0 %"]
    assert [one["Outcome"] for one in losses] == ["pass", "undecided", "fail", "pass", "pass"]
    assert len({one["Noise"] for one in losses}) == 4


def test_the_words_say_what_is_covered_and_what_is_missed_in_the_figures_of_the_file(tmp_path: Path) -> None:
    covered, fail, undecided, step, creep, canary, paired, jobs, nodes = proof.words(read(tmp_path, ROWS))
    assert in_order(
        covered, "1 episode", "normal", "0.15", "0.25 %", "0.40", "weeks", "0.21", "walks", "canary", "0.33"
    )
    assert in_order(fail, "1 episode", "walks", "1.37", "fail")
    assert in_order(undecided, "3 episodes", "slow group of nodes", "1.50", "undecided")
    assert in_order(step, STEP, "98 %", "normal", "7 %", "weeks", "30 %", "fail", "22 %", "64 %", "3 jobs")
    assert in_order(creep, CREEP, "91 %", "normal", "80 %", "undecided")
    assert in_order(canary, "canary", "walks", "0.33", "1.37")
    assert in_order(paired, "--against", STEP, "7 %", "weeks")
    assert in_order(jobs, "--jobs", STEP, "3 jobs", "64 %", "22 %")
    assert "--exclude-slow" in nodes


def test_where_all_is_found_no_paired_night_is_advised(tmp_path: Path) -> None:
    words = proof.words(read(tmp_path, ROWS[:1]))
    assert any("--against" in each for each in words)
    sure = ROWS[0] | {"found": {STEP: loss(0.98, 0.3, "pass")}}
    assert not any("--against" in each for each in proof.words(read(tmp_path, [sure])))


@pytest.mark.parametrize(
    "wrong",
    [
        {"jobs": 0},
        {"nose": "gauss"},
        {"outcome": "good"},
        {"found": {STEP: 0.98}},
        {"found": {STEP: loss(1.98, 0.3, "pass")}},
        {"found": {STEP: {"share": 0.98, "outcome": "pass"}}},
    ],
)
def test_a_proof_of_another_form_is_refused_by_name(tmp_path: Path, wrong: Mapping[str, Any]) -> None:
    assert proof.proof(tmp_path / "proof.yaml") is None
    with pytest.raises(UsageError, match=r"proof\.yaml"):
        read(tmp_path, [row("gauss", 0.1) | wrong])
    (tmp_path / "proof.yaml").write_text("rows: [")
    with pytest.raises(UsageError, match=r"proof\.yaml"):
        proof.proof(tmp_path / "proof.yaml")


def test_the_page_has_the_words_and_the_table_where_there_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(tmp_path, ROWS)
    with referred(store(tmp_path / "results.db", slowed(30))) as database:
        read_history = history(database, "frontier")
    for known, blocks in ((None, 0), (found, len(proof.words(found)) + 2)):
        monkeypatch.setattr(proof, "proof", lambda known=known: known)
        (system,) = page.pages([read_history])
        (section,) = [each for each in system.page.sections if each.name == "methods"]
        added = section.blocks[len(page.METHODS) :]
        assert len(added) == blocks
        if added:
            *words, quiet, losses = added
            assert [each.text for each in words if isinstance(each, Paragraph)] == proof.words(found)
            assert isinstance(quiet, Table)
            assert isinstance(losses, Table)


def test_until_enough_nights_the_page_says_from_what_size_on_a_change_counts(tmp_path: Path) -> None:
    nights = (detector.EARLY, detector.EARLY + 1)
    for count in nights:
        with referred(store(tmp_path / f"{count}.db", slowed(count, since=count))) as database:
            (system,) = page.pages([history(database, "frontier")])
        (section,) = [each for each in system.page.sections if each.name == "night"]
        said = [each.text for each in section.blocks if isinstance(each, Paragraph)]
        told = [each for each in said if in_order(each, "2 figures", f"{detector.EARLY}", "5.0 %")]
        assert bool(told) is (count == detector.EARLY)


@pytest.mark.weekly
@pytest.mark.parametrize("name", simulated.ROWS)
def test_a_share_of_the_proof_contradicts_no_row_of_it(name: str) -> None:
    """One year of the twenty, or twenty losses of the two hundred."""
    row, told = simulated.ROWS[name], proof.proof()
    assert told
    (outcome,) = simulated.simulate([name], argparse.Namespace(years=1, trials=20, figures=200, out=None))
    quiet = row if isinstance(row, simulated.Quiet) else simulated.Quiet(row.noise, jobs=row.jobs)
    wanted = (quiet.noise, quiet.jobs, quiet.canary, quiet.drift)
    (kept,) = [one for one in told.rows if (one.noise, one.jobs, one.canary, one.drift) == wanted]
    known = kept.outcome if isinstance(row, simulated.Quiet) else kept.found[row.title].outcome
    assert {outcome, known} != {"pass", "fail"}
