"""`par4d reference make` and `par4d verdict` on databases of many nights, and on bad ones."""

import math
import random
import re
from datetime import timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from nights_commands import make, verdict
from sample_nights import FIRST, NEW, OLD, SLOWED, STEADY, case, night_name, session, slowed, store, timed

from reports import run_reports
from reports.load import load
from reports.nights import history as nights_history
from reports.nights import table
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
    assert "1 got worse, of Slowed n=512" in out
    assert f"longer since the night {night_name(40)}" in out
    assert "torch 2.9.0 -> 2.10.0" in out
    assert verdict(slow, "--last", "6") == 1
    told = re.findall(r"^frontier, night (\S+): (\w+) got worse", capsys.readouterr().out, re.MULTILINE)
    assert [night for night, _ in told] == [night_name(number) for number in range(38, 44)]
    assert [count for _, count in told][:2] == ["nothing", "nothing"]
    assert told[-1][1] == "1"


def test_references_have_median_and_mad_of_at_least_twenty_jobs_and_where_they_come_from(tmp_path, capsys):
    assert make(store(tmp_path / "results.db", slowed(30))) == 0
    found = references.references("frontier")
    assert found is not None
    steady = next(one for one in found.series if one.test == "Steady")
    usual = steady.figures["time_per_iteration"]
    assert usual.jobs == steady.nights == 30
    assert usual.median == pytest.approx(18, rel=0.005)
    assert 0.001 < usual.mad / usual.median < 0.006
    assert steady.versions["torch"] == ("2.9.0",)
    assert steady.commits
    assert steady.first < steady.last
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("New references: 2 tests")
    assert said[-1] == str(references.path_of("frontier"))


def test_too_few_jobs_make_no_reference_and_are_unknown(tmp_path, capsys):
    database = store(tmp_path / "results.db", slowed(19))
    assert make(database) == 2
    assert "20 jobs of the same test, and the most are 19" in capsys.readouterr().err
    assert verdict(database) == 2
    assert "19 of the 20 jobs" in capsys.readouterr().out


def test_since_leaves_out_what_was_before(tmp_path, capsys):
    database = store(tmp_path / "results.db", slowed(60, since=30, by=1.5))
    assert make(database, "--since", night_name(30)[:10]) == 0
    found = references.references("frontier")
    assert found is not None
    slow = next(one for one in found.series if one.test == "Slowed").figures["time_per_iteration"]
    assert slow.median == pytest.approx(27, rel=0.01)
    assert verdict(database) == 0
    assert make(database, "--since", "soon") == 2
    assert "--since" in capsys.readouterr().err


def test_failed_skipped_and_dry_jobs_never_enter_a_reference(tmp_path):
    sessions = slowed(20, names=(STEADY,))
    for number, one in enumerate(sessions):
        _, record = timed(99.0, 500 + number, NEW)
        bad = {"time_per_iteration": (99.0, "s")}
        failed = case(STEADY, bad, record, failure="the loss is not a number")
        skipped = case(STEADY, bad, record) | {"result": "skip", "record": {}}
        dry = case(STEADY, {}, {})
        one["runs"][0]["testcases"] += [failed, skipped, dry]
    assert make(store(tmp_path / "results.db", sessions)) == 0
    found = references.references("frontier")
    assert found is not None
    (series,) = found.series
    assert series.figures["time_per_iteration"].jobs == 20
    assert series.figures["time_per_iteration"].median < 19


def test_a_job_that_failed_its_references_only_is_a_job_like_others(tmp_path):
    sessions = slowed(20, names=(STEADY,))
    for one in sessions[:4]:
        one["runs"][0]["testcases"][0] |= {"result": "fail", "fail_reason": "too slow", "fail_phase": "performance"}
    assert make(store(tmp_path / "results.db", sessions)) == 0


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
    assert "1 of 3 jobs: the node was lost" in out
    assert re.search(r"^same +Steady n=512 .* 2$", out, re.MULTILINE)


def test_a_job_without_a_result_beside_good_ones_is_told(tmp_path, capsys):
    sessions = slowed(40, jobs=3)
    sessions[-1]["runs"][0]["testcases"][0] |= {"result": "skip", "record": {}, "perfvalues": {}}
    database = store(tmp_path / "results.db", sessions)
    make(database)
    assert verdict(database) == 0
    out = capsys.readouterr().out
    assert "1 of 3 jobs of Steady n=512: it was skipped." in out
    assert "Chance: with 2 figures judged every night" in out


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
    assert "nothing got worse, 1 same, 2 unknown" in out
    assert why in out


def test_an_alarm_stays_while_its_test_is_not_run(tmp_path, capsys):
    quiet, sessions = store(tmp_path / "quiet.db", slowed(40)), slowed(44)
    sessions.append(session([case(STEADY, *timed(18.0, 900, OLD))], FIRST.replace(month=12)))
    make(quiet)
    assert verdict(store(tmp_path / "slow.db", sessions)) == 1
    out = capsys.readouterr().out
    assert "1 got worse, of Slowed n=512" in out
    assert re.search(r"unknown, alarm +Slowed n=512", out)
    assert "its test was not run" in out


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
    assert f"its alarm is given up, as it was not measured in {GIVEN_UP} nights" in said[-2]


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
    assert "nothing got worse, 2 same, 1 unknown." in out
    assert re.search(
        "^unknown +Lost, n=1 .* ReFrame has kept nothing of it, as where the night's time limit", out, re.MULTILINE
    )
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
    monkeypatch.setattr("reports.nights.table.as_text", lambda _: 1 // 0)
    assert verdict(database) == 2
    assert "This is an error of par4d verdict itself: nothing is known of the night." in capsys.readouterr().err


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
    assert "1 far off, which is no alarm yet" in capsys.readouterr().out


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
    assert "Worse than the reference, without an alarm: Slowed n=512 time_per_iteration (by 7" in out


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


def test_tests_that_have_too_few_jobs_now_keep_the_reference_that_they_had(tmp_path, capsys):
    sessions = slowed(60)
    for one in sessions[30:]:
        del one["runs"][0]["testcases"][0]
    database = store(tmp_path / "results.db", sessions)
    make(database)
    before = references.references("frontier")
    assert make(database, "--since", night_name(30)[:10]) == 0
    assert "New references: 1 test, 1 figure. Kept: 1 other test." in capsys.readouterr().out
    after = references.references("frontier")
    assert before is not None
    assert after is not None
    assert [one.test for one in after.series] == ["Slowed", "Steady"]
    assert after.series[1] == before.series[1]
    assert after.series[0].first > before.series[0].first


def test_figures_that_too_few_jobs_have_now_keep_the_reference_that_they_had(tmp_path):
    sessions = slowed(60, since=99)
    for number, one in enumerate(sessions):
        for test in one["runs"][0]["testcases"]:
            if number < 50:
                test["perfvalues"]["frontier:gpu:faster_half"] = [17.0, 0, None, None, "s", "pass"]
            if number < 30:
                test["perfvalues"]["frontier:gpu:gone"] = [17.0, 0, None, None, "s", "pass"]
    make(store(tmp_path / "before.db", sessions[:30]))
    make(store(tmp_path / "after.db", sessions), "--since", f"{FIRST + timedelta(days=40):%Y-%m-%d}")
    found = references.references("frontier")
    assert found is not None
    usual = found.series[0].figures
    assert {name: one.jobs for name, one in usual.items()} == {"time_per_iteration": 20, "faster_half": 30}


def test_jobs_of_other_options_grids_and_precisions_are_not_compared(tmp_path):
    sessions = slowed(20, names=(STEADY,))
    for number, one in enumerate(sessions):
        figures, record = timed(30.0, 700 + number, NEW)
        other = case(STEADY, figures, record, words=("-m", "engine", "train", "--model", "gpt-10b", "--out", "x.json"))
        grid = case(STEADY, figures, record | {"grid": "1x1x1x512"})
        one["runs"][0]["testcases"] += [other, grid]
    database = store(tmp_path / "results.db", sessions)
    make(database)
    found = references.references("frontier")
    assert found is not None
    assert len(found.series) == 3
    (told,) = night_reports(nights_history.history(database, "frontier"), found)
    names = [case.get("classname") for case in ElementTree.fromstring(table.as_junit(told)).iter("testcase")]
    assert len(set(names)) == len(names) == 3


def test_where_a_result_goes_and_what_a_machine_has_make_no_other_test():
    given = [
        "-m",
        "engine",
        "train",
        "--data",
        "/a/text-1",
        "--peak-flops",
        "1e12",
        "--label",
        "x=y",
        "--out",
        "r.json",
    ]
    other = ["-m", "engine", "train", "--data", "/b/c/text-1", "--out", "elsewhere.json"]
    of = [
        references.key_of(partition="gpu", display_name="A %b=1", ranks=4, words=words, record={})
        for words in (given, other)
    ]
    assert of[0] == of[1]
    repeated = references.key_of(partition="gpu", display_name="A %.repeat_no=3 %b=1", ranks=4, words=given, record={})
    assert repeated == of[0]
    assert references.key_of(partition="gpu", display_name="A %b=1", ranks=8, words=given, record={}) != of[0]
    assert of[0].options == "-m engine train --data text-1"
    spread = [*given, "--devices-per-node", "1"]
    assert references.key_of(partition="gpu", display_name="A %b=1", ranks=4, words=spread, record={}) != of[0]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("schema: par4d.references", "schema: other", "reads par4d.references of version 2"),
        ("version: 2", "version: 9", "reads par4d.references of version 2"),
        ("system: frontier", "system: alps", "holds references of 'alps'"),
        ("unit: s", "unit: h", "edited since it was made"),
        ("jobs: 30", "jobs: 3", "not a valid references file"),
        ("mad: ", "mad: -", "not a valid references file"),
        ("schema:", "{[", "is not YAML"),
    ],
)
def test_references_that_were_edited_or_are_of_another_schema_are_refused_with_the_remedy(
    tmp_path, capsys, old, new, told
):
    database = store(tmp_path / "results.db", slowed(30))
    make(database)
    file = references.path_of("frontier")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    capsys.readouterr()
    assert verdict(database) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    if "YAML" not in told:
        assert "make it anew by `par4d reference make --system frontier`" in error
    assert make(database) == 0  # which mends it
    assert "They are made anew, without what it holds." in capsys.readouterr().err
    assert verdict(database) == 0


def test_the_summary_is_text_markdown_and_junit(tmp_path):
    sessions = slowed(44, names=(STEADY, "Slowed %n=<b>|*&"))
    quiet, slow = store(tmp_path / "quiet.db", sessions[:40]), store(tmp_path / "slow.db", sessions)
    make(quiet)
    (told,) = night_reports(nights_history.history(slow, "frontier"), references.references("frontier"))
    suite = ElementTree.fromstring(table.as_junit(told))
    assert suite.get("failures") == "1"
    (failure,) = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failure.get("classname") == "Slowed n=<b>|*&"
    marked = table.as_markdown(told)
    assert "Slowed n=&lt;b>\\|\\*&amp;" in marked
    rows = [line for line in marked.splitlines() if line.startswith("| ")]
    assert {len(line.replace("\\|", "").split("|")) for line in rows} == {10}
    assert re.search("^worse +Slowed", table.as_text(told), re.MULTILINE)


def test_verdicts_of_chance_alone_are_few(tmp_path):
    """40 figures that don't change: nothing is called worse or better."""
    names = [f"T{number} %n=1" for number in range(40)]
    database = store(tmp_path / "results.db", slowed(40, names=names, since=99))
    make(database)
    nights = night_reports(nights_history.history(database, "frontier"), references.references("frontier"), last=10)
    called = [one for night in nights for one in night.verdicts if one.word in ("worse", "better")]
    assert not called
    assert not any(night.alarms for night in nights)


def test_references_are_reframes_own_too():
    usual = references.Reference(unit="s", median=2.0, mad=0.1, jobs=20, nights=20)
    assert usual.as_reframe() == (2.0, None, pytest.approx(0.25), "s")
    rate = references.Reference(unit="flop/s", median=1e12, mad=1e9, jobs=20, nights=20)
    assert rate.as_reframe() == (1e12, -0.02, None, "flop/s")


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
    assert re.search(r"Steady n=512: canary is .* longer .* Culprit: the machine, as the canary never changes", out)
    assert re.search(r"^same +Steady n=512 +time_per_iteration", out, re.MULTILINE)
