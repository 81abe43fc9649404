"""Loading of torch: OpenMP's variables are checked before, and nothing is collected meanwhile."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import LONG_S

from engine.cli.main import main
from engine.errors import UsageError
from engine.loading import check, loading

TRAIN = ["train", "--model", "gpt-local-1", "--batch-size", "8", "--data", "synthetic"]
WRONG = {
    "OMP_NUM_THREADS": ("abc", "", " ", "0", "-1", "1.5", "4x", "1e1", "2,0", "2,", ",2", "2;2", "0x10", "2147483648"),
    "OMP_THREAD_LIMIT": ("abc", "", "0", "4,2"),
    "MKL_NUM_THREADS": ("abc", "", "0", "-1", "4,2"),
    "OMP_PROC_BIND": ("abc", "", "1", "true,true", "close,"),
    "OMP_PLACES": ("abc", "", "0-1", "cores(x)"),
}
RIGHT = {
    "OMP_NUM_THREADS": ("1", "16", " 3 ", "+2", "4,2", "4 , 2,1"),
    "OMP_THREAD_LIMIT": ("64",),
    "MKL_NUM_THREADS": ("2",),
    "OMP_PROC_BIND": ("true", "FALSE", "close", "spread,close", "master"),
    "OMP_PLACES": ("cores", "Threads(4)", "sockets", "{0},{1}", "{0:4}:2:4", "{0,1,2},{3:2:-1},!{5}"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_what_is_none_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        check({name: value})
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in RIGHT for value in RIGHT[name]])
def test_what_openmp_follows_is_not(name: str, value: str) -> None:
    check({name: value})


def test_all_that_loads_torch_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(UsageError, match="OMP_NUM_THREADS"), loading():
        pass


def test_a_command_refuses_before_it_writes_a_result_and_help_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    out = tmp_path / "result.json"
    assert main([*TRAIN, "--out", str(out)]) == 2
    assert "OMP_NUM_THREADS" in capsys.readouterr().err
    assert not out.exists()
    assert main(["train", "--help"]) == 0


def test_a_command_refuses_before_torch_is_loaded(tmp_path: Path) -> None:
    script = (
        "import json, sys; from engine.cli.main import main; code = main(sys.argv[1:]);"
        "print(json.dumps([code, 'torch' in sys.modules]))"
    )
    for words in (TRAIN, ["bench", "gemm"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words, "--out", str(tmp_path / "out.json")],
            env=os.environ | {"OMP_NUM_THREADS": ""},
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=True,
        )
        assert json.loads(done.stdout) == [2, False]
        assert done.stderr.count("\n") == 1


def test_nothing_is_collected_meanwhile_and_nothing_of_it_looked_at_again() -> None:
    before = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_a_rank_loads_torch_without_a_collection() -> None:
    code = """
import gc, sys
from engine.cli.main import main
collected = []
loaded = lambda: hasattr(sys.modules.get("engine.tracing.dry"), "dry_run")
gc.callbacks.append(lambda phase, about: "torch" in sys.modules and collected.append(loaded()))
main(["bench", "dry", "--model", "gpt-test", "--grid", "1x1x1x1", "--batch-size", "1"])
assert gc.get_freeze_count() > 100_000
assert all(collected)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
