"""What a night says of itself once its tests have run."""

import time
from dataclasses import replace

import pytest
from sample_nights import night_name, slowed, store

from night import procedure
from night.procedure import judged, keep, report
from night.session import NightRun
from reports.nights.history import DATABASE, history
from reports.nights.reference import make
from reports.nights.report import FINE, WORSE


@pytest.fixture
def night(tmp_path, own_references):
    """The last one of 44, of which four are slow."""
    store(tmp_path / "quiet.db", slowed(40))
    store(tmp_path / DATABASE, slowed(44))
    make(history(tmp_path / "quiet.db", "frontier"))
    return NightRun(night_name(43), "frontier", tmp_path, time.monotonic() + 60)


def test_a_night_tells_what_got_worse(night: NightRun):
    told = judged(night)
    assert told.code == WORSE
    assert told.night.name == night.name
    assert judged(NightRun(night_name(30), "frontier", night.folder, night.ends)).code == FINE


def test_a_summary_that_cannot_be_written_changes_no_verdict(night: NightRun, capsys):
    told = judged(night)
    keep(night, told)
    assert "1 got worse" in (night.summaries / "latest.txt").read_text()
    other = NightRun(night.name, "frontier", night.folder / "other", night.ends)
    (night.folder / "other" / "results").mkdir(parents=True)
    (night.folder / "other" / "results" / "nights").write_text("a file where a folder has to be")
    keep(other, told)
    assert "The summary could not" in capsys.readouterr().err
    odd = replace(told, system=None)  # type: ignore[arg-type]
    keep(night, odd)
    assert "The summary could not" in capsys.readouterr().err


def test_a_report_that_fails_or_hangs_is_told_and_no_more(night: NightRun, capsys, monkeypatch):
    (night.folder / "site").write_text("a file where a folder has to be")
    report(night)
    assert "The report could not" in capsys.readouterr().err
    monkeypatch.setattr(procedure, "REPORT_TIMEOUT_S", 0.01)
    report(night)
    assert "timed out after 0.0" in capsys.readouterr().err
