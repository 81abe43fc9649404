"""A night against a commit: what it makes of its jobs, and one for real in which every step got slower."""

import shutil
import subprocess
from pathlib import Path

import pytest
from prove_against import PLANTED, night
from running import ROOT, project

from engine.errors import UsageError
from night import against
from night.against import LIMIT, Point, as_junit, as_text, checked_out, full_name
from night.session import NightRun
from reports.nights.report import WORSE

COMMIT = "0123456789abcdef"
FOUND = [
    Point("slow", (1.03, 1.028, 1.034)),
    Point("equal", (1.0, 1.001, 0.999)),
    Point("noisy", (0.9, 1.2, 1.0)),
    Point("one", (1.2,)),
    Point("broken", (), "3 of 3 jobs failed: <no>"),
]


def test_a_point_is_slower_if_all_of_its_interval_is_beyond_the_limit_and_of_one_job_nothing_is_known():
    assert [point.outcome for point in FOUND] == ["fail", "pass", "undecided", "undecided", "undecided"]
    assert Point("at the limit", (LIMIT, LIMIT, LIMIT)).outcome != "fail"


def test_the_table_and_the_junit_file_tell_each_point():
    lines = as_text(COMMIT, FOUND).splitlines()
    words = [line.split("  ")[0] for line in lines[1:6]]
    assert words == ["slower", "no slower", "undecided", "undecided", "failed"]
    assert "1.031" in lines[1]
    assert "not known" in lines[4]
    assert lines[5].endswith("3 of 3 jobs failed: <no>")
    assert COMMIT[:12] in lines[-1]
    junit = as_junit(NightRun("name", "local", Path(), 0.0), FOUND)
    assert 'tests="5"' in junit
    assert 'failures="2"' in junit
    assert 'skipped="2"' in junit
    assert "&lt;no&gt;" in junit


def test_a_commit_is_checked_out_once_and_what_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "of").mkdir()
    monkeypatch.setattr(against, "ROOT", committed(tmp_path / "of", {"a.txt": "first"}))
    name = full_name("HEAD")
    assert len(name) == 40
    (tmp_path / "of" / "a.txt").write_text("later")
    for _ in range(2):
        assert (checked_out(name, tmp_path) / "a.txt").read_text() == "first"
    for word in ("no-such", "--help"):
        with pytest.raises(UsageError, match=f"{word} is no commit of"):
            full_name(word)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, "of"]), "nothing else is left"


def test_a_slower_engine_is_found_in_one_night_of_real_jobs(tmp_path: Path):
    """Every step takes five times as long as the commit's, of which two jobs tell."""
    root = project(tmp_path)
    for part in ("ci", "reports"):
        shutil.copytree(ROOT / part, root / part)
    shutil.copy(ROOT / ".gitignore", root)
    committed(root)
    trainer = root / "engine" / "training" / "trainer.py"
    trainer.write_text(f"import time\n{trainer.read_text()}{PLANTED.format(by=4.0)}")
    quick = ("-S", "Earlier.model=gpt-test", "-S", "Earlier.rounds=3", "--exclude", "local-2|local-4")
    done = night(root, ["--jobs", "2", "--", *quick])
    assert done.returncode == WORSE, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("slower ")
    assert 'failures="1"' in (root / "results" / "nights" / "local" / "against.xml").read_text()


def committed(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Make what is in the folder, and these files, the first commit of a repository."""
    for name, content in (files or {}).items():
        (folder / name).write_text(content)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *words], check=True, timeout=120)
    return folder
