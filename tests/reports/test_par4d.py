"""The program par4d: the engine's commands and the report's, in one."""

from pathlib import Path

import pytest

from reports.par4d import main


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
