"""Loading of results: files found, duplicates counted once, bad files left out by name."""

import json
import sqlite3
from pathlib import Path

import pytest
from sample_results import as_record, gemm, run_report, save, train

from engine.errors import UsageError
from reports.frames.frame import frames
from reports.frames.points import points
from reports.read.load import load
from reports.read.peaks import with_peaks
from reports.site import build


def database(path: Path, *reports: object) -> None:
    """A results database as ReFrame 4.10 makes it."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE sessions(uuid TEXT PRIMARY KEY, session_start_unix REAL, session_end_unix REAL, json_blob TEXT, "
        "report_file TEXT)"
    )
    for number, report in enumerate(reports):
        text = report if isinstance(report, str) else json.dumps(report)
        connection.execute("INSERT INTO sessions VALUES(?, ?, ?, ?, ?)", (f"s{number}", number, number, text, None))
    connection.commit()
    connection.close()


def test_result_files_are_found_at_any_depth_under_any_name(tmp_path: Path) -> None:
    save([train()], tmp_path / "a" / "b")
    save([gemm()], tmp_path / "c")
    assert len(load([tmp_path]).runs) == 2


def test_a_run_report_alone_gives_the_same_results_as_the_files(tmp_path: Path) -> None:
    results = [train(), gemm()]
    save(results, tmp_path / "files")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "run-report-0.json").write_text(json.dumps(run_report([as_record(r) for r in results])))
    from_files, from_report = load([tmp_path / "files"]), load([tmp_path / "report"])
    assert [run.result for run in from_report.runs] == [run.result for run in from_files.runs]


def test_the_results_database_alone_gives_the_results(tmp_path: Path) -> None:
    database(tmp_path / "results.db", run_report([as_record(train())]), "{cut", run_report([as_record(gemm())]))
    loaded = load([tmp_path])
    assert [run.result.kind for run in loaded.runs] == ["train", "gemm"]
    assert "session s1" in loaded.skipped[0].source


def test_a_run_found_in_file_report_and_database_counts_once_and_names_the_file(tmp_path: Path) -> None:
    report = run_report([as_record(train())])
    (tmp_path / "a-report.json").write_text(json.dumps(report))
    (tmp_path / "latest.json").symlink_to("a-report.json")
    database(tmp_path / "a.db", report)
    save([train()], tmp_path / "z")
    loaded = load([tmp_path, tmp_path / "z"])
    assert [run.source for run in loaded.runs] == [str(tmp_path / "z" / "00000.json")]
    assert loaded.duplicates == 2


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("stored", ["report", "database"])
def test_a_run_that_its_test_found_wrong_is_failed_whatever_its_result_file_says(
    tmp_path: Path, plain: bool, stored: str
) -> None:
    reason = "sanity error:\n took Socket"
    report = run_report([as_record(train())], result="fail", fail_reason=reason)
    if stored == "database":
        database(tmp_path / "results.db", report)
    else:
        (tmp_path / "zz-report.json").write_text(json.dumps(report))
    save([train(job=1), *([train()] if plain else [])], tmp_path / "a")
    loaded = load([tmp_path])
    assert {(run.result.provenance.start, run.result.status, run.result.reason) for run in loaded.runs} == {
        (train(job=1).provenance.start, "ok", None),
        (train().provenance.start, "failed", " ".join(reason.split())),
    }
    (row,) = points(with_peaks(frames(loaded.runs).runs)).to_dict("records")
    assert (row["jobs"], row["failed"]) == (1, 1)
    assert row["time_s"] == pytest.approx(18.0)


def test_a_run_that_failed_by_itself_keeps_its_own_reason(tmp_path: Path) -> None:
    report = run_report([as_record(train(failure="rank 3 died"))], result="fail", fail_reason="sanity error: x")
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert [run.result.reason for run in load([tmp_path]).runs] == ["rank 3 died"]


def test_a_run_whose_test_only_missed_its_reference_is_a_point_that_tells_so(tmp_path: Path) -> None:
    reason = "performance error: time_per_iteration=18"
    report = run_report([as_record(train())], result="fail", fail_reason=reason, fail_phase="performance")
    (tmp_path / "report.json").write_text(json.dumps(report))
    save([train()], tmp_path / "a")
    (run,) = load([tmp_path]).runs
    assert (run.result.status, run.remark) == ("ok", reason)
    build([tmp_path], tmp_path / "site")
    assert reason in (tmp_path / "site" / "weak_scaling.html").read_text()


def test_two_jobs_of_the_same_command_are_two_results(tmp_path: Path) -> None:
    save([train(job=1), train(job=2)], tmp_path)
    assert len(load([tmp_path]).runs) == 2


def test_a_dry_run_leaves_nothing_but_a_failure_without_a_result_is_listed(tmp_path: Path) -> None:
    (tmp_path / "dry.json").write_text(json.dumps(run_report([{}, None, "<undefined>"])))
    assert load([tmp_path]).skipped == ()
    failed = run_report([{}], result="fail", fail_reason="job timed out")
    (tmp_path / "failed.json").write_text(json.dumps(failed))
    loaded = load([tmp_path])
    assert loaded.runs == ()
    assert [skip.reason for skip in loaded.skipped] == [loaded.skipped[0].reason]
    assert "job timed out" in loaded.skipped[0].reason
    assert loaded.without_record == 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"schema": "par4d.result", "vers', "cut short"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"", "is not JSON"),
        (b'{"schema": "par4d.result", "version": 99}', "schema version 99"),
        (b'{"schema": "par4d.result", "version": 1}', "not a valid result"),
    ],
)
def test_an_unreadable_file_is_listed_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    save([train()], tmp_path)
    (tmp_path / "bad.json").write_bytes(content)
    loaded = load([tmp_path])
    assert len(loaded.runs) == 1
    assert len(loaded.skipped) == 1
    assert reason in loaded.skipped[0].reason
    assert str(tmp_path / "bad.json") == loaded.skipped[0].source


def test_a_database_that_is_cut_short_is_listed(tmp_path: Path) -> None:
    (tmp_path / "results.db").write_bytes(b"SQLite format 3\x00" + b"x" * 50)
    assert "can't be read as" in load([tmp_path]).skipped[0].reason


def test_ranks_that_no_machine_has_are_refused(tmp_path: Path) -> None:
    save([train().model_copy(update={"ranks": 0}), train(job=1).model_copy(update={"ranks": 10**40})], tmp_path)
    assert [skip.reason.count("its ranks are") for skip in load([tmp_path]).skipped] == [1, 1]


def test_other_json_files_and_half_written_results_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "header.json").write_text('{"tokens": 5}')
    (tmp_path / ".result.json").write_text('{"schema"')
    database(tmp_path / "other.db")
    loaded = load([tmp_path])
    assert (loaded.runs, loaded.skipped) == ((), ())


def test_a_folder_that_is_missing_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--results .*none "):
        load([tmp_path / "none"])
