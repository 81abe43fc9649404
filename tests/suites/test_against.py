"""A night against a commit: what it makes of its jobs, and one for real in which every step got slower."""

import shutil
from pathlib import Path

import pytest
from git_folder import committed
from prove_against import PLANTED, night
from running import ROOT, project

from engine.errors import UsageError
from night import against
from night.against import LIMIT, Point, as_junit, as_text, checked_out, full_name, points
from reports.nights.report import NOTHING_KEPT, WORSE
from reports.read.history import NightJob
from systems.references import Key

COMMIT = "0123456789abcdef"
FOUND = [
    Point("slow", (1.03, 1.028, 1.034)),
    Point("equal", (1.0, 1.001, 0.999)),
    Point("noisy", (0.9, 1.2, 1.0)),
    Point("one", (1.2,)),
    Point("broken", (1.0, 1.001, 0.999), failed=True, reason="1 of 4: <no>"),
    Point("absent", reason="nothing is kept"),
]


def test_a_point_is_slower_if_all_of_its_interval_is_beyond_the_limit_and_of_one_job_nothing_is_known():
    expected = ["fail", "pass", "undecided", "undecided", "fail", "undecided"]
    assert [point.outcome for point in FOUND] == expected
    assert Point("at the limit", (LIMIT, LIMIT, LIMIT)).outcome != "fail"
    just = (1.03, 1.025, 1.035)
    assert Point("one", just).outcome == "fail"
    assert Point("one of four", just, of=4).outcome == "undecided", "together they are wrong as seldom as one"


def test_the_table_and_the_junit_file_tell_each_point():
    lines = as_text(COMMIT, FOUND).splitlines()
    words = [line.split("  ")[0] for line in lines[1:7]]
    assert words == ["slower", "no slower", "undecided", "undecided", "failed", "undecided"]
    assert "1.031" in lines[1]
    assert "not known" in lines[4]
    assert lines[5].endswith("1 of 4: <no>")
    assert COMMIT[:12] in lines[-1]
    junit = as_junit("local", FOUND)
    assert 'tests="6"' in junit
    assert 'failures="2"' in junit
    assert 'skipped="3"' in junit
    assert "&lt;no&gt;" in junit


def test_a_test_that_left_nothing_is_undecided_one_that_is_skipped_here_is_not_judged_and_a_failure_is_told():
    chosen = [("Against", f"point={name}") for name in ("good", "lost", "skipped", "bad")]
    good, skipped = job("good", ratio=1.002), job("skipped", reason="it was skipped")
    bad = [job("bad", ratio=1.0), job("bad", failed=True, reason="it hung")]
    found = points(chosen, [good, good, skipped, *bad])
    assert [(one.name, one.outcome, one.of) for one in found] == [
        ("good", "pass", 3),
        ("lost", "undecided", 3),
        ("bad", "fail", 3),
    ]
    assert [one.reason for one in found[:2]] == ["", NOTHING_KEPT]
    assert found[2].reason.startswith("1 of 2 ")
    assert found[2].reason.endswith(": it hung")


def job(point: str, *, ratio: float | None = None, failed: bool = False, reason: str = "") -> NightJob:
    key = Key("cpu", "Against", f"point={point}", "", 1, "", "")
    figures = {} if ratio is None else {"paired_ratio": (ratio, "x")}
    return NightJob(key, failed, reason, figures, {}, {}, 1.0)


def test_a_commit_is_checked_out_once_and_what_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "of"
    folder.mkdir()
    (folder / "a.txt").write_text("first")
    monkeypatch.setattr(against, "ROOT", committed(folder))
    name = full_name("HEAD")
    assert len(name) == 40
    (folder / "a.txt").write_text("later")
    for _ in range(2):
        assert (checked_out(name, tmp_path) / "a.txt").read_text() == "first"
    for word in ("no-such", "--help"):
        with pytest.raises(UsageError, match="but git says: "):
            full_name(word)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, "of"]), "nothing else is left"


@pytest.mark.weekly
def test_a_slower_engine_is_found_in_one_night_of_real_jobs(tmp_path: Path):
    """Every step takes ten times as long as the commit's, of which three jobs tell."""
    root = project(tmp_path)
    for part in ("ci", "reports"):
        shutil.copytree(ROOT / part, root / part)
    shutil.copy(ROOT / ".gitignore", root)
    committed(root)
    trainer = root / "engine" / "training" / "trainer.py"
    trainer.write_text(f"import time\n{trainer.read_text()}{PLANTED.format(by=9.0)}")
    quick = ("-S", "Against.model=gpt-test", "-S", "Against.rounds=10", "--exclude", "local-2|local-4")
    done = night(root, ["--jobs", "3", "--", *quick])
    assert done.returncode == WORSE, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("slower ")
    assert 'failures="1"' in (root / "results" / "nights" / "local" / "against.xml").read_text()
