"""ReFrame's configuration, made of the system files."""

import subprocess
from pathlib import Path

import pytest
from reframe.core.backends import getlauncher, getscheduler
from reframe.core.config import load_config
from waiting import LONG_S

import systems
from systems import settings

EVERY_PARTITION = [(name, partition) for name in systems.names() for partition in systems.load(name).partitions]


def test_the_configuration_satisfies_reframes_schema() -> None:
    load_config("<builtin>", str(Path(settings.__file__))).validate()


def test_every_system_is_configured() -> None:
    configured = [system["name"] for system in settings.site_configuration["systems"]]
    assert configured == list(systems.names())


@pytest.mark.parametrize(("name", "partition"), EVERY_PARTITION)
def test_every_scheduler_and_launcher_exists_and_every_partition_has_a_time_limit(
    name: str, partition: systems.Partition
) -> None:
    assert getscheduler(partition.scheduler)
    assert getlauncher(partition.launcher)
    assert partition.time_limit


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


def test_reframe_picks_this_machine_and_no_other() -> None:
    hosts = {system["name"]: system["hostnames"] for system in settings.site_configuration["systems"]}
    assert [name for name, patterns in hosts.items() if patterns == [".*"]] == [systems.here().name]


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
@pytest.mark.parametrize(("nodes", "asked"), [("2", True), ("1", False), (None, False)])
def test_the_network_is_asked_for_between_nodes_only_and_nothing_else_speaks_of_nccls_log(
    name: str, nodes: str | None, asked: bool
) -> None:
    (partition,) = systems.load(name).partitions
    assert partition.transport is not None
    commands = [command for command in settings.prepared(partition) if not command.startswith("module load ")]
    environ = {"NCCL_NET": "a module's", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": "log"}
    script = "\n".join(["set -eu", *commands, "env"])
    had = environ | ({"SLURM_JOB_NUM_NODES": nodes} if nodes else {})
    done = subprocess.run(
        ["/bin/bash", "-c", script], env=had, capture_output=True, text=True, timeout=LONG_S, check=True
    )
    left = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {key: value for key, value in left.items() if key.startswith("NCCL_")} == (
        {"NCCL_NET": partition.transport.nccl_net} if asked else {}
    )


def test_the_networks_name_is_no_command() -> None:
    (partition,) = systems.load("alps").partitions
    assert partition.transport is not None
    odd = partition.transport.model_copy(update={"nccl_net": "'; echo hurt; '"})
    script = "\n".join(settings.prepared(partition.model_copy(update={"transport": odd})))
    had = {"SLURM_JOB_NUM_NODES": "2"}
    command = ["/bin/bash", "-c", f'{script}\nprintf %s "$NCCL_NET"']
    done = subprocess.run(command, env=had, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert done.stdout == "'; echo hurt; '"


def test_a_partition_may_name_what_no_waiting_mends_and_otherwise_reframe_decides() -> None:
    options = {
        system["name"]: system["partitions"][0]["sched_options"] for system in settings.site_configuration["systems"]
    }
    assert "Nodes required for job are DOWN" in options["vcluster"]["slurm_job_cancel_reasons"]
    assert "slurm_job_cancel_reasons" not in options["frontier"]
