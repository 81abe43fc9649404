"""Ends of a command: output that goes nowhere, words that no file can hold, and a person who interrupts."""

import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from engine_command import SMALL
from waiting import LONG_S

from engine.cli.main import main
from engine.errors import UsageError
from engine.options import numbers
from engine.reporter import end_after
from engine.result import provenance

TRAIN = ("train", *SMALL, "--iterations", "1", "--warmup", "0", "--device", "cpu", "--energy", "off")


def engine(
    *words: str, at: Path, ends: str = "", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """A command of its own Python, in that folder. ends: what a shell would put behind it, such as >&-."""
    line = f'exec "$@" {ends}'
    return subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-m", "engine", *words],
        cwd=at,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
        capture_output=True,
        timeout=LONG_S,
        check=False,
    )


@pytest.mark.parametrize("ends", [">/dev/full", ">&-", ">/dev/full 2>&1", ">&- 2>&- <&-"])
def test_a_run_that_is_ok_ends_so_whatever_becomes_of_what_it_says(ends: str, tmp_path: Path) -> None:
    done = engine(*TRAIN, at=tmp_path, ends=ends)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results/result.json").read_text())["status"] == "ok"
    assert b"Traceback" not in done.stderr


LOGS = "import logging; from engine.output import log_to_stderr; log_to_stderr(0); logging.info('as a long run does')"


def test_progress_that_nobody_can_read_changes_no_exit_code(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>/dev/full', "sh", sys.executable, "-c", LOGS],
        cwd=tmp_path, timeout=LONG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0


def test_what_only_standard_output_would_have_had_is_told_to_be_lost(tmp_path: Path) -> None:
    for words in (("--help",), ("train", "--help"), ("check", *SMALL, "--ranks", "1")):
        done = engine(*words, at=tmp_path, ends=">/dev/full")
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr
        assert b"No space left on device" in done.stderr


def test_letters_that_an_encoding_lacks_are_written_as_numbers(tmp_path: Path) -> None:
    done = engine(*TRAIN, "--out", "é/r.json", at=tmp_path, environment={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert rb"\xe9/r.json" in done.stdout
    assert (tmp_path / "é/r.json").exists()


@pytest.mark.parametrize(
    "words", [("--out", "r\udcff.json"), ("--out=\udcff/r.json",), ("--data", "\udcff"), ("--label", "a=\udcff")]
)
def test_a_word_that_no_result_can_hold_is_refused_by_its_option(
    words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, *words]) == 2
    assert capsys.readouterr().err.startswith(words[0].partition("=")[0])


def test_variables_that_are_not_utf8_are_kept_as_numbers() -> None:
    found = provenance.collect(
        start=provenance.now(), launcher="none", environ={"NCCL_A": "x\udcff", "LOADEDMODULES": "a:\udce9"}
    )
    assert (found.environment, found.modules) == ({"NCCL_A": r"x\xff"}, ("a", r"\xe9"))
    assert json.loads(found.model_dump_json())


@pytest.mark.parametrize("value", ["a", "", "3..1", "1.5", "-1"])
def test_a_refusal_names_its_option(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--profile-iterations", "--grid", "--overlap", "--label", "--dropout", "--checkpoint-every"):
        if option == "--dropout" and value == "":
            continue  # in the words of the command line's library
        assert main([*TRAIN, f"{option}={value}"]) == 2, option
        assert option in capsys.readouterr().err
    with pytest.raises(UsageError):
        numbers(value)


@pytest.mark.parametrize("name", ["nosuch", "", "../local", "local.yaml"])
@pytest.mark.parametrize("command", ["train", "check", "grids"])
def test_a_system_that_there_is_not_is_refused_where_it_is_not_needed(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {
        "train": [*TRAIN, "--grid", "1x1x1x1"],
        "check": ["check", *SMALL, "--ranks", "1", "--grid", "1x1x1x1"],
        "grids": ["bench", "grids", *SMALL, "--candidate", "1x1x1x1"],
    }
    assert main([*words[command], "--system", name]) == 2
    assert repr(name) in capsys.readouterr().err


def test_an_interrupt_before_anything_listens_is_a_sentence(tmp_path: Path) -> None:
    """While modules are imported: of a name that Python looks for in this folder first."""
    (tmp_path / "cyclopts.py").write_text("import signal, os\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = engine(*TRAIN, at=tmp_path, environment={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"Interrupted.\n")


def test_versions_are_told_while_torch_is_imported_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert "torch" in provenance.versions()


def test_a_report_that_fails_ends_the_process_all_the_same() -> None:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        end_after(lambda: [][0])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
