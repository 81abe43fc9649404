"""The command `python -m reports`, and par4d with the engine's commands and the report's in one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from reading import in_order
from sample_results import save, series
from waiting import LONG_S

from reports.par4d import main

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


def test_a_report_is_made_without_torch() -> None:
    code = "import sys, reports.site; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=LONG_S, check=False).returncode == 0


def test_a_results_folder_that_is_missing_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = reports("build", "--results", "nowhere", "--out", "site", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert in_order(done.stderr, "--results", "nowhere")
    assert not (tmp_path / "site").exists()


def test_par4d_has_the_engines_commands_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("par4d", "train", "check", "data", "bench", "report"))
    assert main(["check", "--model", "gpt-test", "--batch-size", "2", "--data", "synthetic", "--ranks", "2"]) == 0
    assert main(["check", "--nonsense"]) == 2
    assert "See par4d check --help." in capsys.readouterr().err


def test_report_hands_on_all_its_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "build", "--results", str(tmp_path), "--out", str(tmp_path / "site")]) == 0
    assert Path(capsys.readouterr().out.splitlines()[-1]) == (tmp_path / "site" / "index.html").resolve()
    with pytest.raises(SystemExit) as ended:
        main(["report", "build", "--help"])
    assert ended.value.code == 0
    assert "folders to search for" in capsys.readouterr().out
