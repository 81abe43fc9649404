"""ReFrame's configuration, made of the system files."""

from pathlib import Path

import pytest
from reframe.core.backends import getlauncher, getscheduler
from reframe.core.config import load_config

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


def test_a_partition_may_name_what_no_waiting_mends_and_otherwise_reframe_decides() -> None:
    options = {
        system["name"]: system["partitions"][0]["sched_options"] for system in settings.site_configuration["systems"]
    }
    assert "Nodes required for job are DOWN" in options["vcluster"]["slurm_job_cancel_reasons"]
    assert "slurm_job_cancel_reasons" not in options["frontier"]
