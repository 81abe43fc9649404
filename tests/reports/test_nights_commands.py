"""`par4d reference make`, `par4d verdict` and the end of ci/nightly on databases of many nights."""

import json
import math
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from reading import in_order
from sample_nights import FIRST, NEW, OLD, SLOWED, SLOWER_FROM, STEADY, case, night_name, session, slowed, store, timed

from night import procedure
from night.session import NightRun
from reports.nights import report
from reports.nights.judge import GIVEN_UP
from reports.nights.reference import make as make_references
from reports.nights.report import FINE, WORSE, night_reports
from reports.par4d import main
from reports.read import run_reports
from reports.read.history import DATABASE, histories, history
from reports.read.load import load
from systems import references
from systems.references import References, key_of

pytestmark = pytest.mark.usefixtures("own_references")

Sessions = list[dict[str, Any]]
Judge = Callable[..., tuple[int, str]]
SKIPPED = {"result": "skip", "record": {}, "perfvalues": {}}


def make(database: Path, *words: str) -> int:
    return main(["reference", "make", "--system", "frontier", "--database", str(database), *words])


def verdict(database: Path, *words: str) -> int:
    return main(["verdict", "--system", "frontier", "--database", str(database), *words])


def frontier() -> References:
    found = references.references("frontier")
    assert found is not None
    return found


def cases_of(sessions: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    return (test for one in sessions for test in one["runs"][0]["testcases"])


def add_figure(test: dict[str, Any], name: str, value: float, unit: str = "s") -> None:
    test["perfvalues"][f"frontier:gpu:{name}"] = [value, 0, None, None, unit, "pass"]


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Judge:
    """Make references of the first sessions, then judge all; returns the exit code and the output."""

    def judge(sessions: Sessions, quiet: int | None = None, *words: str) -> tuple[int, str]:
        make(store(tmp_path / "quiet.db", sessions[:quiet]))
        capsys.readouterr()
        code = verdict(store(tmp_path / "all.db", sessions), *words)
        return code, capsys.readouterr().out

    return judge


def opened(out: str) -> list[list[str]]:
    """Return the figures of each episode that raised an alarm in the nights of a JSON document."""
    document = json.loads(out)
    alarms = {number for night in document["nights"] if night["code"] == 1 for number in night["opened"]}
    return [[one["figure"] for one in each["figures"]] for each in document["episodes"] if each["episode"] in alarms]


def test_a_slowdown_is_found_with_what_changed_and_the_exit_code_says_so(tmp_path, judge, capsys):
    code, out = judge(slowed(40))
    assert code == 0
    assert "1 got worse" not in out
    assert verdict(store(tmp_path / "slow.db", slowed())) == 1
    assert in_order(
        capsys.readouterr().out, "1 got", "n=512", night_name(SLOWER_FROM), "torch 2.9.0 -> 2.10.0", within=200
    )
    later = store(tmp_path / "later.db", slowed(66))
    assert verdict(later, "--last", "6", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == 2
    assert [night["night"] for night in document["nights"]] == [night_name(number) for number in range(60, 66)]
    assert [night["code"] for night in document["nights"]] == [0, 0, 1, 0, 0, 0]
    assert [night["opened"] for night in document["nights"]] == [[], [], [1], [], [], []]
    assert [night["open"] for night in document["nights"]] == [[], [], [], [1], [1], [1]]
    (episode,) = document["episodes"]
    assert (episode["since"], episode["found"], episode["ended"]) == (night_name(60), night_name(62), None)
    assert (episode["state"], episode["size"]) == ("open", pytest.approx(0.08, abs=0.01))
    assert verdict(later) == 0
    assert in_order(capsys.readouterr().out, "1 episode open", night_name(60))


@pytest.mark.parametrize(
    ("change", "code", "parts"),
    [
        ({"fail": "lost"}, 1, ["1 failed", "lost"]),
        ({"result": "skip"}, 2, ["1 same, 2 unknown", "skipped"]),
        ({"result": "abort"}, 2, ["1 same, 2 unknown", "ended"]),
        ({"result": "fail_deps"}, 2, ["1 same, 2 unknown", "needs"]),
    ],
)
def test_a_test_without_a_result_never_passes(judge, change, code, parts):
    sessions = slowed(40)
    tests = sessions[-1]["runs"][0]["testcases"]
    tests[0] = case(STEADY, {}, {}, failure=change.get("fail", "")) | {k: v for k, v in change.items() if k != "fail"}
    found, out = judge(sessions)
    assert found == code
    assert [part for part in parts if part not in out] == []


@pytest.mark.parametrize(("failure", "code", "parts"), [("lost", 1, ["1 failed,"]), ("", 0, ["2 figures"])])
def test_of_a_test_with_good_jobs_the_others_are_counted(judge, failure, code, parts):
    sessions = slowed(40, jobs=3)
    sessions[-1]["runs"][0]["testcases"][0] = case(STEADY, {}, {}, failure=failure) | ({} if failure else SKIPPED)
    found, out = judge(sessions)
    assert found == code
    assert [part for part in ["1 of 3 jobs", *parts] if part not in out] == []
    assert re.search(r"^same +Steady .* 2$", out, re.MULTILINE)


def test_a_partition_without_room_for_a_test_that_another_runs_makes_nothing_unknown(judge):
    sessions = slowed(40)
    sessions[-1]["runs"][0]["testcases"].append(case(STEADY, {}, {}) | {"result": "skip", "partition": "debug"})
    code, out = judge(sessions)
    assert code == 0
    assert in_order(out, "Steady n=512", "debug", "skipped", within=20)


def test_an_episode_stays_open_while_its_test_is_not_run_and_is_then_given_up(tmp_path, judge, capsys):
    sessions = slowed()
    assert judge(sessions, 40)[0] == 1
    codes, outs = [], []
    for missed in range(1, GIVEN_UP + 3):
        at = FIRST + timedelta(days=62 + missed)
        sessions.append(session([case(STEADY, *timed(18.0, 900 + missed, OLD))], at, night_name(62 + missed)))
        if missed == 1 or missed >= GIVEN_UP:
            codes.append(verdict(store(tmp_path / f"{missed}.db", sessions)))
            outs.append(capsys.readouterr().out)
    assert codes == [0, 0, 0, 0]
    assert [f"open since {night_name(60)}" in out for out in outs] == [True, True, False, False]
    assert ["1 episode over" in out for out in outs] == [False, False, True, False]


def test_a_chosen_test_that_left_nothing_is_unknown_to_all_who_ask(tmp_path, judge):
    names, at = [STEADY, SLOWED, "Lost, %n=1"], FIRST + timedelta(days=39)
    sessions = [
        *slowed(39),
        session([case(STEADY, *timed(18.0, 900, OLD))], at, night_name(39), names),
        session([case(SLOWED, *timed(18.0, 901, OLD))], at, night_name(39), names[:1]),
    ]
    code, out = judge(sessions)
    assert code == 2
    assert "2 same, 1 unknown" in out
    assert re.search("^unknown +Lost, n=1 .*limit", out, re.MULTILINE)
    stored = list(run_reports.sessions(tmp_path / "all.db"))
    (joined,) = histories([stored, stored])
    assert list(joined.nights[-1].chosen) == [("Steady", "n=512"), ("Slowed", "n=512"), ("Lost,", "n=1")]


@pytest.mark.parametrize(
    "odd",
    [
        {"collectives": 3},
        {"collectives": [3]},
        {"breakdown": {"axes": [1], "hosts": 7, "compute_s": "x"}},
        {"breakdown": {"axes": {"axis": 1}}},
        {"provenance": {"hosts": 5, "devices": 3, "modules": 1, "versions": [], "environment": "", "clocks_hz": 3}},
        {"transport": {"networks": 5}},
        {"summary": 9, "config": [], "grid": {}, "dtype": [1]},
    ],
)
def test_a_record_of_whatever_form_is_judged_without_an_error(tmp_path, odd):
    sessions = slowed(25)
    for test in cases_of(sessions[-1:]):
        test["record"] |= odd
    make(store(tmp_path / "quiet.db", sessions[:24]))
    (tmp_path / "results").mkdir()
    assert verdict(store(tmp_path / "results" / "odd.db", sessions)) in (0, 2)
    assert load([tmp_path / "results"]).histories


def test_an_error_of_ours_is_no_verdict_on_the_machine(tmp_path, capsys, monkeypatch):
    database = store(tmp_path / "results.db", slowed(2))
    monkeypatch.setattr("reports.nights.report.as_text", lambda _: 1 // 0)
    assert verdict(database) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_steps_of_which_a_third_takes_much_longer_are_an_alarm_although_the_faster_half_does_not(judge):
    noise, sessions = random.Random(1), slowed(70, jobs=3, by=1.39)
    for test in cases_of(sessions):
        add_figure(test, "faster_half", 18 + noise.gauss(0, 0.1))
    _, out = judge(sessions, 30, "--last", "10", "--json")
    assert opened(out) == [["time_per_iteration"]]


def test_figures_of_the_same_work_open_one_episode(judge):
    sessions = slowed()
    for test in cases_of(sessions):
        add_figure(test, "faster_half", 0.95 * test["perfvalues"]["frontier:gpu:time_per_iteration"][0])
    code, out = judge(sessions, 40)
    assert code == 1
    assert out.count("Culprit") == 1


def test_a_figure_that_is_no_longer_measured_does_not_pass(judge):
    sessions = slowed(40)
    figures = sessions[-1]["runs"][0]["testcases"][0]["perfvalues"]
    figures["frontier:gpu:other"] = figures.pop("frontier:gpu:time_per_iteration")
    code, out = judge(sessions)
    assert (code, "it was not measured" in out) == (2, True)


def test_a_new_figure_without_a_reference_does_not_silence_the_one_that_it_replaces(judge):
    sessions = slowed()
    for test in cases_of(sessions[60:]):
        add_figure(test, "faster_half", 17.0)
    assert judge(sessions, 40)[0] == 1


def test_what_is_slower_without_an_alarm_is_in_the_headline(judge):
    code, out = judge(slowed(61), 60)
    assert (code, "1 far off" in out) == (0, True)


def test_weather_is_no_alarm_and_is_reported_once_it_lasts(judge):
    sessions = slowed(30, since=99)
    for number in range(30, 390):
        cases = []
        for name in (STEADY, SLOWED):
            seconds = 18.0 * (1 + (number - 30) * 0.00008 * (name == SLOWED)) * (1 + 0.004 * math.sin(7 * number))
            cases.append(case(name, *timed(seconds, number, OLD)))
        sessions.append(session(cases, FIRST + timedelta(days=number), night_name(number)))
    code, out = judge(sessions, 30)
    assert code == 0
    assert in_order(out, "n=512 time_per_iteration", "2.")


def test_a_machine_that_got_slower_is_the_alarm_of_the_canary_alone(judge):
    moods, sessions = random.Random(3), slowed(80, since=99, names=(STEADY,))
    for number, test in enumerate(cases_of(sessions)):
        mood = 1 + abs(moods.gauss(0, 0.02)) + (0.1 if number >= 70 else 0.0)
        test["perfvalues"]["frontier:gpu:time_per_iteration"][0] *= mood
        add_figure(test, "canary", 0.04 * mood)
    _, out = judge(sessions, 60, "--last", "10", "--json")
    assert opened(out) == [["canary"]]
    assert "the machine" in json.loads(out)["episodes"][0]["part"]
    last = json.loads(out)["nights"][-1]["verdicts"]
    assert {one["figure"]: one["verdict"] for one in last} == {"canary": "worse", "time_per_iteration": "same"}


def test_nights_have_names_so_that_what_others_store_meanwhile_is_another_night(tmp_path):
    others = session([case(STEADY, *timed(18.0, 900, OLD))], FIRST.replace(month=12))
    found = history(store(tmp_path / "results.db", [*slowed(32), others]), "frontier")
    assert found.nights[-1].name == "2026-12-01"
    (named,) = night_reports(found, None, night=night_name(31))
    assert named.night.name == night_name(31)


def test_a_job_costs_its_nodes_for_as_long_as_it_ran_and_not_for_its_time_in_the_queue(tmp_path):
    figures, record = timed(18.0, 1, OLD)
    origin = record["provenance"] | {"start": "2026-09-01T02:00:00+00:00", "end": "2026-09-01T02:05:00+00:00"}
    jobs = [
        case("Ran %n=1", figures, record | {"provenance": origin}) | {"time_run": 9000.0},
        case("Failed %n=1", {}, {}, failure="x") | {"time_run": 9000.0, "time_limit_s": 600.0},
        case("Short %n=1", figures, record) | {"time_run": 20.0},
    ]
    (night,) = history(store(tmp_path / "results.db", [session(jobs, FIRST)]), "frontier").nights
    assert [job.node_seconds for job in night.jobs] == [4 * 330, 4 * 600, pytest.approx(4 * 20, abs=40)]


def test_the_summary_is_text_markdown_and_junit(tmp_path):
    sessions = slowed(names=(STEADY, "Slowed %n=<b>|*&"))
    make(store(tmp_path / "quiet.db", sessions[:40]))
    (last,) = night_reports(history(store(tmp_path / "slow.db", sessions), "frontier"), frontier())
    suite = ElementTree.fromstring(report.as_junit(last))
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    (failure,) = [test for test in suite.iter("testcase") if test.find("failure") is not None]
    assert failure.get("classname") == "Slowed n=<b>|*&"
    marked = report.as_markdown(last)
    assert "Slowed n=&lt;b>\\|\\*&amp;" in marked
    rows = [line for line in marked.splitlines() if line.startswith("| ")]
    assert {len(line.replace("\\|", "").split("|")) for line in rows} == {10}
    assert re.search("^worse +Slowed", report.as_text(last), re.MULTILINE)
    sessions = slowed(65, names=(STEADY, "Slowed %n=<b>|*&"))
    (later,) = night_reports(history(store(tmp_path / "later.db", sessions), "frontier"), frontier())
    suite = ElementTree.fromstring(report.as_junit(later))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1"), "the night before has told it"


def test_a_night_run_reports_what_got_worse_and_what_it_cant_write(tmp_path, capsys, monkeypatch):
    store(tmp_path / "quiet.db", slowed(40))
    store(tmp_path / DATABASE, slowed())
    make_references(history(tmp_path / "quiet.db", "frontier"))
    night = NightRun(night_name(62), "frontier", tmp_path, time.monotonic() + 60)
    last = procedure.judged(night)
    assert (last.code, last.night.name) == (WORSE, night.name)
    assert procedure.judged(NightRun(night_name(30), "frontier", night.folder, night.ends)).code == FINE
    procedure.keep(night, last)
    assert "1 got worse" in (night.summaries / "latest.txt").read_text()
    assert json.loads((night.summaries / "latest.json").read_text())["nights"][0]["night"] == night.name
    assert (night.summaries / "latest.metrics").read_text().endswith("# EOF\n")
    other = NightRun(night.name, "frontier", night.folder / "other", night.ends)
    (night.folder / "other" / "results").mkdir(parents=True)
    (night.folder / "other" / "results" / "nights").write_text("a file where a folder has to be")
    procedure.keep(other, last)
    assert "The summary could not" in capsys.readouterr().err
    procedure.keep(night, replace(last, system=None))  # type: ignore[arg-type]
    assert "The summary could not" in capsys.readouterr().err
    (night.folder / "site").write_text("a file where a folder has to be")
    procedure.report(night)
    assert "The report could not" in capsys.readouterr().err
    monkeypatch.setattr(procedure, "REPORT_TIMEOUT_S", 0.01)
    procedure.report(night)
    assert "timed out after 0.0" in capsys.readouterr().err


def test_references_have_median_and_mad_of_at_least_twenty_jobs_and_where_they_come_from(tmp_path, capsys):
    assert make(store(tmp_path / "results.db", slowed(30))) == 0
    steady = next(one for one in frontier().series if one.test == "Steady")
    usual = steady.figures["time_per_iteration"]
    assert usual.jobs == steady.nights == 30
    assert usual.median == pytest.approx(18, rel=0.005)
    assert 0.001 < usual.mad / usual.median < 0.006
    assert steady.versions["torch"] == ("2.9.0",)
    assert steady.commits
    assert steady.first < steady.last
    out = capsys.readouterr().out.splitlines()
    assert "2 tests" in out[0]
    assert out[-1] == str(references.path_of("frontier"))


def test_too_few_jobs_make_no_reference_and_are_unknown(tmp_path, capsys):
    database = store(tmp_path / "results.db", slowed(19))
    assert make(database) == 2
    assert in_order(capsys.readouterr().err, "20 jobs", "19")
    assert verdict(database) == 2
    assert in_order(capsys.readouterr().out, "19 of", "20 jobs")


def test_since_leaves_out_what_was_before(tmp_path, capsys):
    database = store(tmp_path / "results.db", slowed(60, since=30, by=1.5))
    assert make(database, "--since", night_name(30)[:10]) == 0
    slow = next(one for one in frontier().series if one.test == "Slowed").figures["time_per_iteration"]
    assert slow.median == pytest.approx(27, rel=0.01)
    assert verdict(database) == 0
    assert make(database, "--since", "soon") == 2
    assert "--since" in capsys.readouterr().err


def test_failed_skipped_and_dry_jobs_enter_no_reference_and_those_that_failed_their_references_do(tmp_path):
    sessions = slowed(20, names=(STEADY,))
    for number, one in enumerate(sessions):
        bad, (_, record) = {"time_per_iteration": (99.0, "s")}, timed(99.0, 500 + number, NEW)
        failed = case(STEADY, bad, record, failure="the loss is not a number")
        skipped = case(STEADY, bad, record) | {"result": "skip", "record": {}}
        one["runs"][0]["testcases"] += [failed, skipped, case(STEADY, {}, {})]
        if number < 4:
            one["runs"][0]["testcases"][0] |= {"result": "fail", "fail_reason": "slow", "fail_phase": "performance"}
    assert make(store(tmp_path / "results.db", sessions)) == 0
    (series,) = frontier().series
    assert series.figures["time_per_iteration"].jobs == 20
    assert series.figures["time_per_iteration"].median < 19


def test_tests_that_have_too_few_jobs_now_keep_the_reference_that_they_had(tmp_path, capsys):
    sessions = slowed(60)
    for one in sessions[30:]:
        del one["runs"][0]["testcases"][0]
    database = store(tmp_path / "results.db", sessions)
    make(database)
    before = frontier()
    assert make(database, "--since", night_name(30)[:10]) == 0
    assert in_order(capsys.readouterr().out, "1 test, 1 figure", "1 other")
    after = frontier()
    assert [one.test for one in after.series] == ["Slowed", "Steady"]
    assert after.series[1] == before.series[1]
    assert after.series[0].first > before.series[0].first


def test_figures_that_too_few_jobs_have_now_keep_the_reference_that_they_had(tmp_path):
    sessions = slowed(60, since=99)
    for number, one in enumerate(sessions):
        for test in cases_of([one]):
            if number < 50:
                add_figure(test, "faster_half", 17.0)
            if number < 30:
                add_figure(test, "gone", 17.0)
    make(store(tmp_path / "before.db", sessions[:30]))
    make(store(tmp_path / "after.db", sessions), "--since", f"{FIRST + timedelta(days=40):%Y-%m-%d}")
    usual = frontier().series[0].figures
    assert {name: one.jobs for name, one in usual.items()} == {"time_per_iteration": 20, "faster_half": 30}


def test_jobs_of_other_options_grids_and_precisions_are_not_compared(tmp_path):
    sessions = slowed(20, names=(STEADY,))
    for number, one in enumerate(sessions):
        figures, record = timed(30.0, 700 + number, NEW)
        other = case(STEADY, figures, record, words=("-m", "engine", "train", "--model", "gpt-10b", "--out", "x.json"))
        one["runs"][0]["testcases"] += [other, case(STEADY, figures, record | {"grid": "1x1x1x512"})]
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert len(frontier().series) == 3
    (last,) = night_reports(history(database, "frontier"), frontier())
    names = [test.get("classname") for test in ElementTree.fromstring(report.as_junit(last)).iter("testcase")]
    assert len(set(names)) == len(names) == 3


def test_where_a_result_goes_and_what_a_machine_has_make_no_other_test():
    def key(*words: str, data: str = "/a/text-1", name: str = "A %b=1", ranks: int = 4) -> references.Key:
        line = ["-m", "engine", "train", "--data", data, *words]
        return key_of(partition="gpu", display_name=name, ranks=ranks, words=line, record={})

    first = key("--peak-flops", "1e12", "--label", "x=y", "--out", "r.json")
    assert first == key("--out", "elsewhere.json", data="/b/c/text-1")
    assert first == key(name="A %.repeat_no=3 %b=1")
    assert first.options.split()[-2:] == ["--data", "text-1"]
    assert first not in (key(ranks=8), key("--devices-per-node", "1"))


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("schema: par4d.references", "schema: other", "par4d.references of version 2"),
        ("version: 2", "version: 9", "par4d.references of version 2"),
        ("system: frontier", "system: alps", "'alps'"),
        ("unit: s", "unit: h", "edited"),
        ("jobs: 30", "jobs: 3", "jobs"),
        ("mad: ", "mad: -", "mad"),
        ("schema:", "{[", "YAML"),
    ],
)
def test_references_that_were_edited_or_are_of_another_schema_are_refused_with_the_remedy(
    tmp_path, capsys, old, new, part
):
    database = store(tmp_path / "results.db", slowed(30))
    make(database)
    file = references.path_of("frontier")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    capsys.readouterr()
    assert verdict(database) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert part == "YAML" or in_order(error, "`par4d", "--system frontier`")
    assert make(database) == 0, "which mends it"
    assert capsys.readouterr().err
    assert verdict(database) == 0


def test_references_are_reframes_own_too():
    usual = references.Reference(unit="s", median=2.0, mad=0.1, jobs=20, nights=20)
    assert usual.as_reframe() == (2.0, None, pytest.approx(0.25), "s")
    rate = references.Reference(unit="flop/s", median=1e12, mad=1e9, jobs=20, nights=20)
    assert rate.as_reframe() == (1e12, -0.02, None, "flop/s")


def test_databases_that_cant_be_read_or_have_no_night_are_named(tmp_path, capsys, monkeypatch):
    def error(database: Path) -> str:
        assert verdict(database) == 2
        return capsys.readouterr().err

    assert str(tmp_path / "none.db") in error(tmp_path / "none.db")
    assert "no night" in error(store(tmp_path / "empty.db", []))
    assert make(tmp_path / "none.db") == 2
    monkeypatch.setattr("reports.read.run_reports.LOCK_TIMEOUT_S", 0.2)
    sessions = slowed(20)
    database = store(tmp_path / "results.db", sessions)
    with sqlite3.connect(database, isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert "locked" in error(database)
        holder.execute("ROLLBACK")
    whole = database.read_bytes()
    for name, content in (("cut.db", whole[: len(whole) // 2]), ("text.db", b"x" * 4096)):
        (tmp_path / name).write_bytes(content)
        assert error(tmp_path / name).count("\n") == 1
    sessions[-1]["session_info"] |= {"data_version": "5.0", "version": "5.1.0"}
    assert "5.1.0" in error(store(tmp_path / "newer.db", sessions))
    assert "folder" in error(tmp_path)
    with sqlite3.connect(tmp_path / "other.db") as opened:
        opened.execute("CREATE TABLE sessions(id INTEGER)")
    assert "move it away" in error(tmp_path / "other.db")


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
    found = history(database, "frontier")
    assert len(found.nights) == 2
    assert [remark.split()[:2] for remark in found.remarks] == [["1", "session"]]


def test_what_only_a_newer_result_has_costs_no_figure(tmp_path):
    sessions = slowed(1)
    for test in cases_of(sessions):
        test["record"]["summary"]["unheard"] = 1.0
    found = history(store(tmp_path / "results.db", sessions), "frontier")
    assert all(job.figures and "unheard" in job.reason for job in found.jobs)


def test_where_a_clock_ran_backwards_nights_stay_in_the_order_of_their_storing(judge, tmp_path):
    sessions = slowed(30)
    sessions.append(session([case(STEADY, *timed(18.0, 900, {}))], FIRST.replace(year=2019), "after-all"))
    code, out = judge(sessions, 30)
    assert history(tmp_path / "all.db", "frontier").nights[-1].name == "after-all"
    assert code == 0
    assert re.search(r"^same +Steady .* 18\.00 ", out, re.MULTILINE)
