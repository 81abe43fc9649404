"""`par4d reference make` on databases of many nights: what gets into a reference, and which tests are alike."""

from datetime import timedelta
from xml.etree import ElementTree

import pytest
from nights_commands import make, verdict
from reading import in_order
from sample_nights import FIRST, NEW, STEADY, case, night_name, slowed, store, timed

from reports.nights import history as nights_history
from reports.nights import report
from reports.nights.report import night_reports
from systems import references

pytestmark = pytest.mark.usefixtures("own_references")


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
    assert in_order(capsys.readouterr().err, "20 jobs", "19")
    assert verdict(database) == 2
    assert in_order(capsys.readouterr().out, "19 of", "20 jobs")


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


def test_tests_that_have_too_few_jobs_now_keep_the_reference_that_they_had(tmp_path, capsys):
    sessions = slowed(60)
    for one in sessions[30:]:
        del one["runs"][0]["testcases"][0]
    database = store(tmp_path / "results.db", sessions)
    make(database)
    before = references.references("frontier")
    assert make(database, "--since", night_name(30)[:10]) == 0
    assert in_order(capsys.readouterr().out, "1 test, 1 figure", "1 other")
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
    names = [case.get("classname") for case in ElementTree.fromstring(report.as_junit(told)).iter("testcase")]
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
    assert of[0].options.split()[-2:] == ["--data", "text-1"]
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
        ("schema:", "{[", "is not valid YAML"),
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
        assert in_order(error, "`par4d", "--system frontier`")
    assert make(database) == 0  # which mends it
    assert "They are made anew" in capsys.readouterr().err
    assert verdict(database) == 0


def test_references_are_reframes_own_too():
    usual = references.Reference(unit="s", median=2.0, mad=0.1, jobs=20, nights=20)
    assert usual.as_reframe() == (2.0, None, pytest.approx(0.25), "s")
    rate = references.Reference(unit="flop/s", median=1e12, mad=1e9, jobs=20, nights=20)
    assert rate.as_reframe() == (1e12, -0.02, None, "flop/s")
