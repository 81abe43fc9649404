"""What a night says of itself once its tests have run."""

import json
import time
from pathlib import Path

import pytest
from sample_nights import night_name, slowed, store

from night.demo import FAULTS, Found
from night.procedure import judged, keep, report
from night.selection import Candidate
from night.session import NightRun
from reports import site
from reports.nights.history import DATABASE, history
from reports.nights.reference import make
from reports.nights.told import FINE, UNKNOWN, WORSE
from systems import references

STEADY, SLOWED, LOST = (
    Candidate(name, name, 0.1, "", 1, {}) for name in ("Steady %n=512", "Slowed %n=512", "Lost %n=1")
)


@pytest.fixture
def night(tmp_path, monkeypatch):
    """The last one of 44, of which four are slow."""
    monkeypatch.setattr(references, "FOLDER", tmp_path / "references")
    store(tmp_path / "quiet.db", slowed(40))
    store(tmp_path / DATABASE, slowed(44))
    make(history(tmp_path / "quiet.db", "frontier"))
    return NightRun(night_name(43), "frontier", tmp_path, time.monotonic() + 60)


def test_a_night_tells_what_got_worse(night: NightRun):
    told = judged(night, [STEADY, SLOWED])
    assert told.code == WORSE
    assert told.night == night.name


def test_a_chosen_test_that_left_nothing_is_unknown_and_says_why(night: NightRun):
    fine = NightRun(night_name(30), "frontier", night.folder, night.ends)
    assert judged(fine, [STEADY, SLOWED]).code == FINE
    told = judged(fine, [STEADY, SLOWED, LOST], "The time is over.")
    assert told.code == UNKNOWN
    assert told.headline.endswith("nothing got worse, 1 test left no result.")
    assert [(one.key.test, one.word, one.reason) for one in told.verdicts if one.key.test == "Lost"] == [
        ("Lost", "unknown", "The time is over.")
    ]


def test_a_summary_that_cannot_be_written_changes_no_verdict(night: NightRun, capsys):
    told = judged(night, [])
    keep(night, told)
    latest = night.folder / "results" / "nights" / "frontier" / "latest.json"
    assert json.loads(latest.read_text())[0]["code"] == WORSE
    other = NightRun(night.name, "frontier", night.folder / "other", night.ends)
    (night.folder / "other" / "results").mkdir(parents=True)
    (night.folder / "other" / "results" / "nights").write_text("a file where a folder has to be")
    keep(other, told)
    assert "The summary could not be written" in capsys.readouterr().err


def test_a_report_that_fails_in_whatever_way_is_told_and_no_more(night: NightRun, capsys, monkeypatch):
    def broken(folders: list[Path], out: Path) -> None:
        raise ZeroDivisionError("in a plot")

    monkeypatch.setattr(site, "build", broken)
    report(night)
    assert "The report could not be built: in a plot" in capsys.readouterr().err


def test_the_demo_is_content_only_where_the_culprit_is_named_and_nothing_else_blamed():
    def found(*raised: tuple[str, str]) -> Found:
        return Found(FAULTS["load"], 1, list(raised))

    named = ("TwoNodes", "TwoNodes: slow. Culprit: one node: n1 computes longer.")
    assert found(named).rightly
    assert found(named, ("OneNode", "OneNode: slow. Culprit: compute: longer.")).rightly
    assert not found(("OneNode", "OneNode: slow. Culprit: compute: longer.")).rightly
    assert found(named, ("Bandwidth", "Bandwidth: less. Culprit: the link: slow.")).wrongly
    assert found(("TwoNodes", "TwoNodes: slow. Culprit: one node: n0 computes longer.")).wrongly
    assert not found().rightly
