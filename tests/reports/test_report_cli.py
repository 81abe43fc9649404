"""The command as a user types it."""

import re
import subprocess
import sys
from pathlib import Path

from reading import in_order
from sample_results import save, series
from waiting import LONG_S

ROOT = Path(__file__).parents[2]


def reports(*words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "reports", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG_S, check=False)


def test_build_reads_results_in_the_working_directory_and_prints_the_index(tmp_path: Path) -> None:
    save(series("local", jobs=1), tmp_path / "results" / "reframe")
    done = reports("build", folder=tmp_path)
    summary, page = done.stdout.splitlines()
    assert (done.returncode, page) == (0, str(tmp_path / "site" / "index.html"))
    assert re.findall(r"\d+", summary) == ["3", "3", "0", "0"], "results, files, skipped, twice"
    assert done.stderr == ""
    assert "gpt-local-2" in (tmp_path / "site" / "weak_scaling.html").read_text()


def test_build_without_any_results_still_makes_pages_that_say_what_to_run(tmp_path: Path) -> None:
    done = reports("build", "--out", "site", folder=tmp_path)
    assert done.returncode == 0
    assert "Nothing measured yet" in (tmp_path / "site" / "index.html").read_text()


def test_a_results_folder_that_is_missing_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = reports("build", "--results", "nowhere", "--out", "site", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert in_order(done.stderr, "--results", "nowhere")
    assert not (tmp_path / "site").exists()


def test_help_says_what_is_read_and_shows_examples(tmp_path: Path) -> None:
    done = reports("build", "--help", folder=tmp_path)
    assert done.returncode == 0
    for words in ("run reports", "results databases", "everything under ./results, into ./site", "exit code"):
        assert words in done.stdout
