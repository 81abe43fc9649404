"""Databases that `par4d verdict` can't read, or that hold what is no run or went backwards."""

import json
import re
import sqlite3

import pytest
from nights_commands import make, verdict
from sample_nights import FIRST, STEADY, case, session, slowed, store, timed

from reports.nights import history as nights_history

pytestmark = pytest.mark.usefixtures("own_references")


def test_no_database_and_no_night_are_told(tmp_path, capsys):
    assert verdict(tmp_path / "none.db") == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "none.db") in told
    assert "has no night of" in told
    assert verdict(store(tmp_path / "empty.db", [])) == 2
    assert "has no night of" in capsys.readouterr().err
    assert make(tmp_path / "none.db") == 2


def test_a_database_that_is_locked_cut_short_or_newer_is_told_in_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reports.run_reports.LOCK_TIMEOUT_S", 0.2)
    database = store(tmp_path / "results.db", slowed(20))
    with sqlite3.connect(database, isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert verdict(database) == 2
        assert "locked" in capsys.readouterr().err
        holder.execute("ROLLBACK")
    whole = database.read_bytes()
    for name, content in (("cut.db", whole[: len(whole) // 2]), ("text.db", b"x" * 4096)):
        (tmp_path / name).write_bytes(content)
        assert verdict(tmp_path / name) == 2
        error = capsys.readouterr().err
        assert "cut short or is" in error
        assert error.count("\n") == 1
    sessions = slowed(20)
    sessions[-1]["session_info"] |= {"data_version": "5.0", "version": "5.1.0"}
    assert verdict(store(tmp_path / "newer.db", sessions)) == 2
    assert "5.1.0, which" in capsys.readouterr().err


def test_a_folder_and_a_database_of_another_schema_are_told_with_what_to_do(tmp_path, capsys):
    assert verdict(tmp_path) == 2
    assert "it is a folder" in capsys.readouterr().err
    with sqlite3.connect(tmp_path / "other.db") as opened:
        opened.execute("CREATE TABLE sessions(id INTEGER)")
    assert verdict(tmp_path / "other.db") == 2
    assert "move it away to" in capsys.readouterr().err


def test_sessions_that_are_no_run_reports_are_left_out_and_counted(tmp_path, capsys):
    database = store(tmp_path / "results.db", slowed(30))
    with sqlite3.connect(database) as opened:
        opened.execute("UPDATE sessions SET json_blob = substr(json_blob, 1, 100) WHERE rowid = 7")
        opened.execute("UPDATE sessions SET json_blob = '{}' WHERE rowid = 9")
    assert make(database) == 0
    assert "2 sessions" in capsys.readouterr().err
    assert verdict(database) == 0
    with sqlite3.connect(database) as opened:
        opened.execute("UPDATE sessions SET json_blob = '{}'")
    assert verdict(database) == 2
    assert "30 sessions" in capsys.readouterr().err


@pytest.mark.parametrize(
    "odd",
    [
        {"session_info": None},
        {"session_info": {"time_start_unix": None}},
        {"session_info": {"time_start_unix": "soon"}},
        {"session_info": {"time_start_unix": 1e30}},
        {"runs": [None]},
        {"runs": [{"testcases": [None]}]},
        {"runs": [{"testcases": [{"system": "frontier", "record": {}, "executable_opts": [["a"]], "nodes": "x"}]}]},
        {"runs": [{"testcases": [{"system": "frontier", "record": {}, "result": "pass", "time_run": "long"}]}]},
    ],
)
def test_a_session_of_another_form_is_left_out_and_the_others_are_read(tmp_path, odd):
    sessions = slowed(3)
    database = store(tmp_path / "results.db", sessions)
    with sqlite3.connect(database) as opened:
        opened.execute("UPDATE sessions SET json_blob = ? WHERE rowid = 2", [json.dumps(sessions[1] | odd)])
    found = nights_history.history(database, "frontier")
    assert len(found.nights) == 2
    assert [remark.split()[:2] for remark in found.remarks] == [["1", "session"]]


def test_what_only_a_newer_result_has_costs_no_figure(tmp_path):
    (one,) = slowed(1)
    for each in one["runs"][0]["testcases"]:
        each["record"]["summary"]["unheard"] = 1.0
    found = nights_history.history(store(tmp_path / "results.db", [one]), "frontier")
    assert all(job.figures and "only the figures can" in job.reason for job in found.jobs)


def test_where_a_clock_ran_backwards_nights_stay_in_the_order_of_their_storing(tmp_path, capsys):
    sessions = slowed(30)
    figures, record = timed(18.0, 900, {})
    sessions.append(session([case(STEADY, figures, record)], FIRST.replace(year=2019), "after-all"))
    database = store(tmp_path / "results.db", sessions)
    found = nights_history.history(database, "frontier")
    assert found.nights[-1].name == "after-all"
    make(store(tmp_path / "quiet.db", sessions[:-1]))
    assert verdict(database) == 0
    assert re.search(r"^same +Steady n=512 +time_per_iteration +18.00 ", capsys.readouterr().out, re.MULTILINE)
