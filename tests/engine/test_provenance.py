"""What a result says about its origin is true, and no secret is in it."""

import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch
from git_folder import committed
from waiting import LONG_S

from engine.result import provenance
from engine.result.provenance import collect, git_state, relevant


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


def test_an_installation_inside_another_repository_has_no_commit(tmp_path: Path) -> None:
    committed(tmp_path / "repo")
    inner = tmp_path / "repo" / "venv"
    inner.mkdir()
    assert git_state(inner) == (None, None)
    outside = tmp_path / "outside"
    outside.mkdir()
    assert git_state(outside) == (None, None)


def test_a_packed_copy_is_of_the_commit_that_it_was_packed_of(tmp_path: Path) -> None:
    (tmp_path / provenance.PACKED).write_text('["0123abcd", true]')
    assert git_state(tmp_path) == ("0123abcd", True)


def test_a_machine_without_git_is_no_error(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    committed(tmp_path / "repo")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path / "repo") == (None, None)


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


def test_the_modules_that_were_loaded_are_told_in_their_order() -> None:
    def loaded(**environ: str) -> tuple[str, ...]:
        return collect(start=provenance.now(), launcher="none", environ=environ).modules

    assert loaded(LOADEDMODULES="craype/2.7.31:rocm/6.2.4::PrgEnv-gnu/8.5.0:") == (
        *("craype/2.7.31", "rocm/6.2.4", "PrgEnv-gnu/8.5.0"),
    )
    assert loaded(LOADEDMODULES="") == loaded() == ()


def test_of_the_clocks_of_a_hosts_ranks_the_least_is_told() -> None:
    clocks = [("n1", 2.1e9), ("n0", 1.9e9), ("n1", 1.2e9), ("n1", 2.4e9)]
    record = collect(start=provenance.now(), launcher="none", hosts=["n1", "n0", "n2"], clocks=clocks)
    assert record.clocks_hz == {"n1": 1.2e9, "n0": 1.9e9}
    assert collect(start=provenance.now(), launcher="none").clocks_hz == {}


def test_a_processor_has_a_name() -> None:
    assert provenance.device_name(torch.device("cpu")).strip()
