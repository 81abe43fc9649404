"""`par4d verdict` on databases of many nights: what is told of them, and by which exit code."""

import math
import random
import re
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from nights_commands import make, verdict
from reading import in_order
from sample_nights import FIRST, OLD, SLOWED, STEADY, case, night_name, session, slowed, store, timed

from reports import run_reports
from reports.load import load
from reports.nights import history as nights_history
from reports.nights import report
from reports.nights.judge import GIVEN_UP
from reports.nights.report import night_reports
from reports.par4d import main
from systems import references

pytestmark = pytest.mark.usefixtures("own_references")


def test_a_slowdown_is_found_with_what_changed_and_the_exit_code_says_so(tmp_path, capsys):
    quiet, slow = store(tmp_path / "quiet.db", slowed(40)), store(tmp_path / "slow.db", slowed(44))
    assert make(quiet) == 0
    assert verdict(quiet) == 0
    assert "nothing got worse" in capsys.readouterr().out
    assert verdict(slow) == 1
    out = capsys.readouterr().out
    assert in_order(out, "1 got", "n=512")
    assert f"longer since the night {night_name(40)}" in out
    assert "torch 2.9.0 -> 2.10.0" in out
    assert verdict(slow, "--last", "6") == 1
    told = re.findall(r"^frontier, night (\S+): (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert [night for night, _ in told] == [night_name(number) for number in range(38, 44)]
    assert [count for _, count in told][:2] == ["nothing", "nothing"]
    assert told[-1][1] == "1"


def test_a_failed_test_is_told_with_its_reason(tmp_path, capsys):
    sessions = slowed(40)
    sessions[-1]["runs"][0]["testcases"][0] = case(STEADY, {}, {}, failure="the node was lost")
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 1
    assert "the node was lost" in capsys.readouterr().out


def test_of_a_test_with_good_and_failed_jobs_the_failed_ones_are_told(tmp_path, capsys):
    sessions = slowed(40, jobs=3)
    sessions[-1]["runs"][0]["testcases"][0] = case(STEADY, {}, {}, failure="the node was lost")
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 1
    out = capsys.readouterr().out
    assert "1 failed," in out
    assert "1 of 3 jobs" in out
    assert re.search(r"^same +Steady .* 2$", out, re.MULTILINE)


def test_a_job_without_a_result_beside_good_ones_is_told(tmp_path, capsys):
    sessions = slowed(40, jobs=3)
    sessions[-1]["runs"][0]["testcases"][0] |= {"result": "skip", "record": {}, "perfvalues": {}}
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 0
    out = capsys.readouterr().out
    assert in_order(out, "1 of 3 jobs", "n=512")
    assert "2 figures" in out


def test_a_partition_without_room_for_a_test_that_another_runs_makes_nothing_unknown(tmp_path, capsys):
    sessions = slowed(40)
    small = case(STEADY, {}, {}) | {"result": "skip", "partition": "debug"}
    sessions[-1]["runs"][0]["testcases"].append(small)
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 0
    assert in_order(capsys.readouterr().out, "Steady n=512", "debug", "skipped", within=20)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("skip", "it was skipped"),
        ("abort", "it was ended before it had a result"),
        ("fail_deps", "a test that it needs failed"),
    ],
)
def test_a_test_without_a_result_is_unknown_and_never_passes(tmp_path, capsys, result, why):
    sessions = slowed(40)
    sessions[-1]["runs"][0]["testcases"][0] = case(STEADY, {}, {}) | {"result": result}
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 2
    out = capsys.readouterr().out
    assert "1 same, 2 unknown" in out
    assert why in out


def test_an_alarm_stays_while_its_test_is_not_run(tmp_path, capsys):
    quiet, sessions = store(tmp_path / "quiet.db", slowed(40)), slowed(44)
    sessions.append(session([case(STEADY, *timed(18.0, 900, OLD))], FIRST.replace(month=12)))
    make(quiet)
    assert verdict(store(tmp_path / "slow.db", sessions)) == 1
    out = capsys.readouterr().out
    assert in_order(out, "1 got", "n=512")
    assert re.search(r"unknown, alarm +Slowed n=512", out)
    assert "its test was not" in out


def test_an_alarm_whose_test_is_run_no_more_is_given_up_with_a_word(tmp_path, capsys):
    quiet, sessions = store(tmp_path / "quiet.db", slowed(40)), slowed(44)
    make(quiet)
    codes, said = [], []
    for missed in range(1, GIVEN_UP + 3):
        at = FIRST + timedelta(days=43 + missed)
        sessions.append(session([case(STEADY, *timed(18.0, 900 + missed, OLD))], at, night_name(43 + missed)))
        codes.append(verdict(store(tmp_path / f"{missed}.db", sessions)))
        said.append(capsys.readouterr().out)
    assert codes == [*GIVEN_UP * [1], 2, 0]
    assert in_order(said[-2], "given up", str(GIVEN_UP))


def test_a_chosen_test_that_left_nothing_is_unknown_to_all_who_ask(tmp_path, capsys):
    sessions = slowed(39)
    names = [STEADY, SLOWED, "Lost, %n=1"]
    sessions += [
        session([case(STEADY, *timed(18.0, 900, OLD))], FIRST + timedelta(days=39), night_name(39), names),
        session([case(SLOWED, *timed(18.0, 901, OLD))], FIRST + timedelta(days=39), night_name(39), names[:1]),
    ]
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 2
    out = capsys.readouterr().out
    assert "2 same, 1 unknown" in out
    assert re.search("^unknown +Lost, n=1 .* time limit", out, re.MULTILINE)
    stored = list(run_reports.sessions(database))
    (joined,) = nights_history.histories([stored, stored])
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
def test_a_record_of_whatever_form_is_told_without_an_error(tmp_path, odd):
    sessions = slowed(40)
    for one in sessions[-1]["runs"][0]["testcases"]:
        one["record"] |= odd
    make(store(tmp_path / "quiet.db", sessions[:39]))
    (tmp_path / "results").mkdir()
    assert verdict(store(tmp_path / "results" / "odd.db", sessions)) in (0, 2)
    assert load([tmp_path / "results"]).histories


def test_an_error_of_ours_is_no_verdict_on_the_machine(tmp_path, capsys, monkeypatch):
    database = store(tmp_path / "results.db", slowed(2))
    monkeypatch.setattr("reports.nights.report.as_text", lambda _: 1 // 0)
    assert verdict(database) == 2
    assert "of par4d verdict itself" in capsys.readouterr().err


def test_steps_of_which_a_third_takes_much_longer_are_an_alarm_although_the_faster_half_does_not(tmp_path, capsys):
    def nights(count: int) -> list[dict[str, Any]]:
        made = slowed(count, jobs=3, by=1.39)
        for one in made:
            for test in one["runs"][0]["testcases"]:
                test["perfvalues"]["frontier:gpu:faster_half"] = [18 + random.gauss(0, 0.1), 0, None, None, "s", "pass"]
        return made

    random.seed(1)
    make(store(tmp_path / "quiet.db", nights(30)))
    assert verdict(store(tmp_path / "slow.db", nights(55))) == 1
    assert "1 got worse" in capsys.readouterr().out


def test_of_figures_of_the_same_work_the_steadier_one_raises_the_alarm(tmp_path, capsys):
    sessions = slowed(45)
    for one in sessions:
        for test in one["runs"][0]["testcases"]:
            seconds = test["perfvalues"]["frontier:gpu:time_per_iteration"]
            test["perfvalues"]["frontier:gpu:faster_half"] = [0.95 * seconds[0], *seconds[1:]]
    make(store(tmp_path / "quiet.db", sessions[:40]))
    assert verdict(store(tmp_path / "slow.db", sessions)) == 1
    out = capsys.readouterr().out
    assert "1 got worse" in out
    assert "Slowed n=512: faster_half is" in out


def test_a_figure_that_is_no_longer_measured_does_not_pass(tmp_path, capsys):
    sessions = slowed(40)
    figures = sessions[-1]["runs"][0]["testcases"][0]["perfvalues"]
    figures["frontier:gpu:other"] = figures.pop("frontier:gpu:time_per_iteration")
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 2
    assert "it was not measured" in capsys.readouterr().out


def test_a_new_figure_without_a_reference_does_not_silence_the_one_that_it_replaces(tmp_path):
    sessions = slowed(44)
    for one in sessions[40:]:
        for test in one["runs"][0]["testcases"]:
            test["perfvalues"]["frontier:gpu:faster_half"] = [17.0, 0, None, None, "s", "pass"]
    make(store(tmp_path / "quiet.db", sessions[:40]))
    assert verdict(store(tmp_path / "slow.db", sessions)) == 1


def test_what_is_slower_without_an_alarm_is_in_the_headline(tmp_path, capsys):
    quiet, slow = store(tmp_path / "quiet.db", slowed(40)), store(tmp_path / "slow.db", slowed(41))
    make(quiet)
    assert verdict(slow) == 0
    assert "1 far off" in capsys.readouterr().out


def test_a_drift_is_no_alarm_and_is_told_once_it_lasts(tmp_path, capsys):
    sessions = slowed(30, since=99)
    for number in range(30, 230):
        cases = []
        for name in (STEADY, SLOWED):
            seconds = 18.0 * (1 + (number - 30) * 0.0004 * (name == SLOWED)) * (1 + 0.004 * math.sin(7 * number))
            cases.append(case(name, *timed(seconds, number, OLD)))
        sessions.append(session(cases, FIRST + timedelta(days=number), night_name(number)))
    make(store(tmp_path / "quiet.db", sessions[:30]))
    assert verdict(store(tmp_path / "drifted.db", sessions)) == 0
    out = capsys.readouterr().out
    assert in_order(out, "n=512 time_per_iteration", "7")


def test_nights_have_names_so_that_what_others_store_meanwhile_is_another_night(tmp_path):
    sessions = slowed(32)
    others = session([case(STEADY, *timed(18.0, 900, OLD))], FIRST.replace(month=12))
    found = nights_history.history(store(tmp_path / "results.db", [*sessions, others]), "frontier")
    assert found.nights[-1].name == "2026-12-01"
    (told,) = night_reports(found, None, night=night_name(31))
    assert told.night.name == night_name(31)


def test_a_job_costs_its_nodes_for_as_long_as_it_ran_and_not_for_its_time_in_the_queue(tmp_path):
    figures, record = timed(18.0, 1, OLD)
    origin = record["provenance"] | {"start": "2026-09-01T02:00:00+00:00", "end": "2026-09-01T02:05:00+00:00"}
    jobs = [
        case("Ran %n=1", figures, record | {"provenance": origin}) | {"time_run": 9000.0},
        case("Failed %n=1", {}, {}, failure="x") | {"time_run": 9000.0, "time_limit_s": 600.0},
        case("Short %n=1", figures, record) | {"time_run": 20.0},
    ]
    (night,) = nights_history.history(store(tmp_path / "results.db", [session(jobs, FIRST)]), "frontier").nights
    assert [job.node_seconds for job in night.jobs] == [4 * 330, 4 * 600, pytest.approx(4 * 20, abs=40)]


def test_the_summary_is_text_markdown_and_junit(tmp_path):
    sessions = slowed(44, names=(STEADY, "Slowed %n=<b>|*&"))
    quiet, slow = store(tmp_path / "quiet.db", sessions[:40]), store(tmp_path / "slow.db", sessions)
    make(quiet)
    (told,) = night_reports(nights_history.history(slow, "frontier"), references.references("frontier"))
    suite = ElementTree.fromstring(report.as_junit(told))
    assert suite.get("failures") == "1"
    (failure,) = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failure.get("classname") == "Slowed n=<b>|*&"
    marked = report.as_markdown(told)
    assert "Slowed n=&lt;b>\\|\\*&amp;" in marked
    rows = [line for line in marked.splitlines() if line.startswith("| ")]
    assert {len(line.replace("\\|", "").split("|")) for line in rows} == {10}
    assert re.search("^worse +Slowed", report.as_text(told), re.MULTILINE)


def test_verdicts_of_chance_alone_are_few(tmp_path):
    """40 figures that don't change: nothing is called worse or better."""
    names = [f"T{number} %n=1" for number in range(40)]
    database = store(tmp_path / "results.db", slowed(40, names=names, since=99))
    make(database)
    nights = night_reports(nights_history.history(database, "frontier"), references.references("frontier"), last=10)
    called = [one for night in nights for one in night.verdicts if one.word in ("worse", "better")]
    assert not called
    assert not any(night.alarms for night in nights)


def test_help_teaches(capsys):
    assert main(["verdict", "--help"]) == 0
    assert "exit code: 0 fine" in capsys.readouterr().out
    assert main(["reference", "make", "--help"]) == 0


def test_a_machine_that_got_slower_is_told_by_the_canary_alone(tmp_path, capsys):
    moods, sessions = random.Random(3), slowed(60, since=99, names=(STEADY,))
    for number, one in enumerate(sessions):
        mood = 1 + abs(moods.gauss(0, 0.02)) + (0.1 if number >= 50 else 0.0)
        for test in one["runs"][0]["testcases"]:
            figure = test["perfvalues"]["frontier:gpu:time_per_iteration"]
            figure[0] *= mood
            test["perfvalues"]["frontier:gpu:canary"] = [0.04 * mood, *figure[1:]]
    make(store(tmp_path / "quiet.db", sessions[:50]))
    assert verdict(store(tmp_path / "slow.db", sessions)) == 1
    out = capsys.readouterr().out
    assert "1 got worse" in out
    assert in_order(out, "Steady n=512: canary", "longer", "the machine")
    assert re.search(r"^same +Steady n=512 +time_per_iteration", out, re.MULTILINE)
