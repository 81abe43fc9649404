"""ReFrame's configuration, made of the system files, and our scheduler of a machine without one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reframe.core.backends import getlauncher, getscheduler
from reframe.core.config import load_config
from reframe.core.exceptions import ConfigError
from waiting import LONG_S

import systems
from engine.errors import UsageError
from engine.simulator.bandwidth import lacking
from suites.base.feasible import check_here
from systems import settings

RUN = """
import json, sys
from reframe.core.backends import getlauncher
from reframe.core.exceptions import JobError
from reframe.core.schedulers import Job
from systems import schedulers

class Alone(schedulers.ProgressScheduler):
    def get_option(self, name):
        return None

schedulers.STANDSTILL_S = float(sys.argv[1])
job = Job.create(Alone(), getlauncher("local")(), name="job", script_filename="job.sh", stdout="out", stderr="err")
job.time_limit = "1s"
job.submit()
reason = None
try:
    job.wait()
except JobError as error:
    reason = str(error)
print(json.dumps({"state": job.state, "code": job.exitcode, "signal": job.signal, "reason": reason}))
"""
"""Runs a job without ReFrame's configuration, in a process of its own, as ReFrame waits for all children of one."""


def bash(commands: list[str], environment: dict[str, str]) -> str:
    """Return the output of a job script of these commands."""
    command = ["/bin/bash", "-c", "\n".join(["set -eu", *commands])]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S, check=True).stdout


def test_every_system_is_configured_and_reframe_picks_this_machine_and_no_other() -> None:
    load_config("<builtin>", str(Path(settings.__file__))).validate()
    hosts = {system["name"]: system["hostnames"] for system in settings.site_configuration["systems"]}
    assert list(hosts) == list(systems.names())
    assert [name for name, patterns in hosts.items() if patterns == [".*"]] == [systems.here().name]
    for name in systems.names():
        for partition in systems.load(name).partitions:
            assert getscheduler(partition.scheduler)
            assert getlauncher(partition.launcher)


def test_the_account_comes_from_the_environment_and_is_left_out_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = systems.load("frontier").partitions[0]
    monkeypatch.delenv("PAR4D_ACCOUNT", raising=False)
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
    usual = ["--partition=batch", "--network=disable_rdzv_get"]
    assert settings.access(partition) == usual
    monkeypatch.setenv("SBATCH_ACCOUNT", "slurms")
    assert settings.access(partition) == [*usual, "--account=slurms"]
    monkeypatch.setenv("PAR4D_ACCOUNT", "ours")
    assert settings.access(partition) == [*usual, "--account=ours"]


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
@pytest.mark.parametrize(("nodes", "asked"), [("2", True), ("1", False), (None, False)])
def test_the_network_is_asked_for_between_nodes_only_and_nothing_else_speaks_of_nccls_log(
    name: str, nodes: str | None, asked: bool
) -> None:
    (partition,) = systems.load(name).partitions
    assert partition.transport is not None
    commands = [command for command in settings.prepared(partition) if not command.startswith("module load ")]
    environ = {"NCCL_NET": "a module's", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": "log"}
    had = environ | ({"SLURM_JOB_NUM_NODES": nodes} if nodes else {})
    left = dict(line.split("=", 1) for line in bash([*commands, "env"], had).splitlines())
    assert {key: value for key, value in left.items() if key.startswith("NCCL_")} == (
        {"NCCL_NET": partition.transport.nccl_net} if asked else {}
    )


@pytest.mark.parametrize(("nodes", "asked"), [("a\na\nb\nb\n", True), ("a\na\n", False)])
def test_under_pbs_the_network_is_asked_for_by_the_list_of_nodes(tmp_path: Path, nodes: str, asked: bool) -> None:
    (partition,) = systems.load("perlmutter").partitions
    of_pbs = partition.model_copy(update={"scheduler": "pbs", "prepare_cmds": ()})
    (tmp_path / "nodes").write_text(nodes)
    had = {"PATH": os.environ["PATH"], "PBS_NODEFILE": str(tmp_path / "nodes")}
    output = bash([*settings.prepared(of_pbs), "env"], had)
    assert ("NCCL_NET=AWS Libfabric" in output.splitlines()) is asked


def test_the_networks_name_is_no_command() -> None:
    (partition,) = systems.load("alps").partitions
    assert partition.transport is not None
    odd = partition.transport.model_copy(update={"nccl_net": "'; echo hurt; '"})
    commands = settings.prepared(partition.model_copy(update={"transport": odd}))
    assert bash([*commands, 'printf %s "$NCCL_NET"'], {"SLURM_JOB_NUM_NODES": "2"}) == "'; echo hurt; '"


def test_a_partition_may_name_what_no_waiting_mends_and_otherwise_reframe_decides() -> None:
    options = {
        system["name"]: system["partitions"][0]["sched_options"] for system in settings.site_configuration["systems"]
    }
    assert any("DOWN" in reason for reason in options["vcluster"]["slurm_job_cancel_reasons"])
    assert "slurm_job_cancel_reasons" not in options["frontier"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of systems: two with partitions, and one that is only planned with."""
    start = "title: a machine\ndevice: {name: a device, kind: cpu}\nnode: {}\n"
    partitions = "partitions: [{name: cpu, scheduler: slurm, launcher: srun, time_limit: 10m}]\n"
    for name in ("one", "other"):
        (tmp_path / f"{name}.yaml").write_text(f"{start}here: {{hostnames: [^{name}$]}}\n{partitions}")
    (tmp_path / "plan.yaml").write_text(start)
    (tmp_path / ".#one.yaml").write_text("an editor's")
    monkeypatch.setattr(systems, "FOLDER", tmp_path)
    systems.load.cache_clear()
    return tmp_path


def configured(host: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Return ReFrame's systems on that host."""
    monkeypatch.setattr("socket.gethostname", lambda: host)
    monkeypatch.setattr("socket.getfqdn", lambda: host)
    monkeypatch.setattr(settings, "SYSTEMS", [systems.load(name) for name in systems.names()])
    found = {system["name"]: system for system in settings._systems()}
    systems.load.cache_clear()
    return found


def here(found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, system in found.items() if system["hostnames"] == [".*"]]


@pytest.mark.usefixtures("folder")
def test_what_is_only_planned_with_is_planned_on_several_nodes_and_runs_nothing_here() -> None:
    plan = systems.load("plan")
    assert {"node.devices", "node.nics", "node.nic_bytes_per_s"} <= {*lacking(plan, None)}
    with pytest.raises(UsageError, match=r"plan\.yaml has no partitions"):
        check_here(plan, "calibrated")


@pytest.mark.usefixtures("folder")
def test_a_system_that_runs_no_jobs_ends_in_a_sentence_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = configured("one", monkeypatch)
    assert here(found) == ["one"]
    (none,) = found["plan"]["partitions"]
    with pytest.raises(ConfigError, match=r"plan\.yaml has no partitions"):
        getscheduler(none["scheduler"])


def test_a_host_that_is_no_system_or_several_is_refused_by_reframe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = configured("nowhere", monkeypatch)
    assert here(found) == [settings.UNKNOWN]
    with pytest.raises(ConfigError, match=r"one, other, plan: .*--system"):
        getscheduler(found[settings.UNKNOWN]["partitions"][0]["scheduler"])
    other = folder / "other.yaml"
    other.write_text(other.read_text().replace("^other$", "^one"))
    found = configured("one", monkeypatch)
    assert here(found) == [settings.UNKNOWN]
    with pytest.raises(ConfigError, match=r"one and other .*--system"):
        getscheduler(found[settings.UNKNOWN]["partitions"][0]["scheduler"])


def test_a_system_like_another_shares_its_host_and_the_other_is_chosen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "one2.yaml").write_text("like: one\ntitle: other nodes\n")
    assert here(configured("one", monkeypatch)) == ["one"]


def test_a_file_with_another_ending_is_refused_with_its_name(folder: Path) -> None:
    (folder / "third.yml").write_text("title: a machine")
    with pytest.raises(UsageError, match=r"third\.yml.* third\.yaml"):
        systems.load("third")


def _ended(folder: Path, script: str, standstill_s: float) -> dict[str, Any]:
    file = folder / "job.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    command = [sys.executable, "-c", RUN, str(standstill_s)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    own: dict[str, Any] = {"cwd": folder, "env": environment, "start_new_session": True}
    done = subprocess.run(command, **own, capture_output=True, text=True, check=True, timeout=LONG_S)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_job_may_take_longer_than_its_time_limit(tmp_path: Path) -> None:
    script = "for second in 1 2; do sleep 1; echo $second; done"
    ended = _ended(tmp_path, script, standstill_s=3600)
    assert ended == {"state": "SUCCESS", "code": 0, "signal": None, "reason": None}
    assert (tmp_path / "out").read_text() == "1\n2\n"


def test_a_job_that_falls_silent_is_ended(tmp_path: Path) -> None:
    ended = _ended(tmp_path, "echo; exec sleep 36000", standstill_s=1)
    assert ended["state"] == "TIMEOUT"
    assert ended["signal"] is not None
    assert "without a line" in ended["reason"]
