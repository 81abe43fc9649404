"""result.json, written whole and read strictly, and the provenance in it, which is true and without secrets."""

import json
import os
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from git_folder import committed
from waiting import LONG_S

from engine.errors import UsageError
from engine.result import provenance
from engine.result.provenance import collect, git_state, relevant
from engine.result.schema import Iteration, Provenance, Result, ResultError, parse, read, write


def _result() -> Result:
    return Result(
        kind="train",
        status="ok",
        config={"seed": 1, "model": {"name": "m"}},
        ranks=2,
        grid="2x1x1x1",
        dtype="fp32",
        iterations=(Iteration(index=0, time_s=0.5, loss=2.0, grad_norm=1.0, learning_rate=0.1, warmup=False),),
        provenance=provenance.collect(start=provenance.now(), launcher="none"),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "a" / "result.json"
    write(_result(), file)
    assert read(file) == _result().model_copy(update={"provenance": read(file).provenance})
    assert [f.name for f in file.parent.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 7}, "version 7, .*up to 6"),
        ({"schema": "other"}, "'schema' is not 'par4d.result'"),
        ({"ranks": "two"}, "at ranks: "),
        ({"grid": "2x1"}, "four positive numbers"),
        ({"surprise": 1}, "at surprise: "),
        ({"iterations": [{"index": 0}]}, r"at iterations\.0\.time_s: field required"),
    ],
)
def test_a_wrong_document_names_the_key(change: dict[str, object], said: str) -> None:
    data = json.loads(_result().to_json()) | change
    with pytest.raises((ResultError, UsageError), match=said):
        parse(data, "result.json")


def test_a_result_that_is_older_than_a_field_is_read_without_it() -> None:
    old = json.loads(_result().to_json()) | {"version": 4}
    del old["provenance"]["modules"], old["provenance"]["clocks_hz"]
    old["breakdown"] = {"compute_s": 2.0, "collectives_s": 1.0}
    found = parse(old, "old.json")
    assert (found.version, found.provenance.modules, found.provenance.clocks_hz) == (4, (), {})
    assert found.breakdown is not None
    assert found.breakdown.hosts == ()


def test_a_file_cut_short_or_missing_is_refused_and_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write(_result(), file)
    before = file.read_text()
    with pytest.raises(ValueError, match="status"):
        write(_result().model_copy(update={"status": "perhaps"}), file)
    assert file.read_text() == before
    file.write_text(before[:200])
    with pytest.raises(ResultError, match="cut short"):
        read(file)
    with pytest.raises(ResultError, match="can't be read"):
        read(tmp_path / "none.json")


def test_a_checkout_names_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    folder = committed(tmp_path / "repo")
    commit, dirty = git_state(folder)
    assert commit is not None
    assert len(commit) == 40
    assert dirty is False
    (folder / "new.txt").write_text("untracked files don't count")
    assert git_state(folder) == (commit, False)
    subprocess.run(["git", "-C", str(folder), "add", "new.txt"], check=True, timeout=LONG_S)
    assert git_state(folder) == (commit, True)


def test_a_copy_an_installation_inside_a_repository_and_a_machine_without_git_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = committed(tmp_path / "repo")
    for folder in (tmp_path / "repo" / "venv", tmp_path / "outside"):
        folder.mkdir()
        assert git_state(folder) == (None, None)
    (tmp_path / "outside" / provenance.PACKED).write_text('["0123abcd", true]')
    assert git_state(tmp_path / "outside") == ("0123abcd", True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(repository) == (None, None)


def test_only_variables_that_matter_are_kept_and_never_a_secret() -> None:
    environ = {
        "OMP_NUM_THREADS": "1",
        "NCCL_NET": "AWS Libfabric",
        "FI_CXI_RX_MATCH_MODE": "soft",
        "SLURM_JOB_ID": "77",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LD_PRELOAD": "/lib/x.so",
        "HOME": "/home/me",
        "SLURM_JOB_USER": "me",
        "FILE": "x",
        "NCCL_AUTH_TOKEN": "hunter2",
        "PAR4D_API_KEY": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "MY_OMP_NUM_THREADS": "3",
    }
    kept = relevant(environ)
    assert list(kept) == sorted(
        ["OMP_NUM_THREADS", "NCCL_NET", "FI_CXI_RX_MATCH_MODE", "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD"]
    )
    assert kept["NCCL_NET"] == "AWS Libfabric"


def test_a_record_has_versions_times_and_each_host_once() -> None:
    start = provenance.now()
    record = collect(
        start=start, launcher="srun", hosts=["n2", "n1", "n2"], devices=["A100"] * 3, environ={"OMP_NUM_THREADS": "4"}
    )
    assert record.versions["torch"] == metadata.version("torch")
    assert record.versions["par4d"] == metadata.version("par4d")
    assert "python" in record.versions
    assert (record.hosts, record.devices, record.launcher) == (("n2", "n1"), ("A100",), "srun")
    assert record.environment == {"OMP_NUM_THREADS": "4"}
    first, last = datetime.fromisoformat(record.start), datetime.fromisoformat(record.end)
    assert first <= last <= datetime.now(UTC)
    assert record.start.endswith("+00:00")


def test_modules_keep_their_order_and_of_the_clocks_of_a_host_the_least_counts() -> None:
    def collected(**known: Any) -> Provenance:
        return collect(start=provenance.now(), launcher="none", **known)

    listed = "craype/2.7.31:rocm/6.2.4::PrgEnv-gnu/8.5.0:"
    modules = collected(environ={"LOADEDMODULES": listed}).modules
    assert modules == ("craype/2.7.31", "rocm/6.2.4", "PrgEnv-gnu/8.5.0")
    assert collected(environ={"LOADEDMODULES": ""}).modules == collected(environ={}).modules == ()
    clocks = [("n1", 2.1e9), ("n0", 1.9e9), ("n1", 1.2e9), ("n1", 2.4e9)]
    assert collected(hosts=["n1", "n0", "n2"], clocks=clocks).clocks_hz == {"n1": 1.2e9, "n0": 1.9e9}
    assert collected().clocks_hz == {}


def test_a_processor_has_a_name_and_says_more_than_that() -> None:
    assert provenance.device_name(torch.device("cpu")).strip()
    assert provenance.processor().startswith(provenance.processor_name())
    assert provenance.processor().endswith(f"{os.cpu_count()} cores")
