"""The partitions of a system's file: what is replaced in them, and what can't be is refused by its name."""

from pathlib import Path

import pytest

import systems
from systems import SystemFileError, placeholders, settings
from systems.partition import LAUNCHERS, SCHEDULERS
from systems.placement import places_ranks, placing

GOOD = """
title: a machine
here: {hostnames: ['^nowhere$']}
device: {name: a device, kind: cuda}
node: {devices: {value: 4, source: its maker}}
partitions:
  - {name: gpu, scheduler: slurm, launcher: srun, time_limit: 10m}
"""


def read(folder: Path, *changes: tuple[str, str], more: str = "", name: str = "machine") -> systems.System:
    """Read that file with changes, and with more keys of its partition."""
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / f"{name}.yaml"
    file.write_text(text.replace("time_limit: 10m", f"time_limit: 10m, {more}") if more else text, encoding="utf-8")
    return systems.read(file)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("scheduler: slrum", ["partitions.0.scheduler", "did you mean slurm", "'slrum'"]),
        ("scheduler: sge", ["partitions.0.scheduler", "'sge'"]),
        ("launcher: srunn", ["partitions.0.launcher", "srun", "'srunn'"]),
        ("launcher: ssh", ["partitions.0.launcher", "'ssh'"]),
        ("name: 'a b'", ["partitions.0.name", "'a b'"]),
        ("features: [gpu, 'x y']", ["partitions.0.features.1", "'x y'"]),
        ("features: [cuda, rocm]", ["partitions.0", "cuda or rocm"]),
        ("time_limit: 0m", ["partitions.0.time_limit", "'0m'"]),
        ("time_limit: 0h0m", ["partitions.0.time_limit", "'0h0m'"]),
        ("longest_jobs: {value: {2: 0m}, source: s}", ["longest_jobs.value.2", "'0m'"]),
        ("longest_jobs: {value: {many: 1h}, source: s}", ["longest_jobs.value.many", "integer"]),
        ("env_vars: {'A B': c}", ["partitions.0.env_vars", "'A B'"]),
        ("env_vars: {A: 1}", ["partitions.0.env_vars.A", "string"]),
        ("env_vars: {A: a, A: b}", ["two keys 'A'", "line 7"]),
        ("cpus_per_task: 0", ["partitions.0.cpus_per_task", "greater than 0"]),
        ('access: ["--a\\nrm -r x"]', ["partitions.0.access.0", "one line"]),
        ("access: ['']", ["partitions.0.access.0", "not empty"]),
        ('launcher_options: ["--a\\tb"]', ["partitions.0.launcher_options.0", "one line"]),
        ("devices_option: ' '", ["partitions.0.devices_option", "one line"]),
        ("access: ['--account={acount}']", ["partitions.0.access.0", "{acount} should be {account}"]),
        ("access: ['--account={ account }']", ["partitions.0.access.0", "should be {account}"]),
        ("access: ['--account={ACCOUNT}']", ["partitions.0.access.0", "should be {account}"]),
        ("access: ['--gpus={devices}']", ["partitions.0.access.0", "{devices} is one of devices_option"]),
        ("devices_option: '--gres=gpu:{device}'", ["partitions.0.devices_option", "should be {devices}"]),
        ("devices_option: '--gres=gpu:{devices:d}'", ["partitions.0.devices_option", "should be {devices}"]),
        ("launcher_options: ['--ppn={rank_per_node}']", ["launcher_options.0", "should be {ranks_per_node}"]),
        ("full_node_options: ['--a={account}']", ["full_node_options.0", "{account} is one of access"]),
        ("container: {kind: docker, image: a}", ["partitions.0.container.kind", "'apptainer'", "'docker'"]),
        ("container: {kind: apptainer}", ["partitions.0.container.image", "required"]),
        ("container: {kind: apptainer, image: ''}", ["partitions.0.container.image", "not empty"]),
        ("container: {kind: pyxis, image: a}, launcher: mpirun", ["partitions.0", "pyxis", "'mpirun'"]),
        ("scheduler: local, launcher: torchrun-one-node, access: [-A]", ["partitions.0", "access", "local"]),
        ("scheduler: local, launcher: srun, devices_option: -G", ["partitions.0", "devices_option", "srun"]),
        ("scheduler: local, launcher: mpirun, cpus_per_task: 2", ["partitions.0", "cpus_per_task", "mpirun"]),
        ("scheduler: pbs, cancel_reasons: [Down]", ["partitions.0", "cancel_reasons", "pbs"]),
        ("scheduler: torque, launcher: mpirun, cpus_per_task: 2", ["partitions.0", "{ranks_per_node}"]),
    ],
)
def test_what_a_partition_cant_have_is_refused_by_file_key_and_value(
    tmp_path: Path, more: str, told: list[str]
) -> None:
    own = {key.split(":")[0] for key in more.split(", ") if ":" in key}
    given = {"name": "gpu", "scheduler": "slurm", "launcher": "srun", "time_limit": "10m"}
    kept = ", ".join(f"{key}: {value}" for key, value in given.items() if key not in own)
    with pytest.raises(SystemFileError) as raised:
        read(tmp_path, ("name: gpu, scheduler: slurm, launcher: srun, time_limit: 10m", f"{kept}, {more}"))
    for part in (str(tmp_path / "machine.yaml"), *told):
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([("title: a machine", "title: a machine\nname: another")], ["another.yaml"]),
        ([("title: a machine", "title: a machine\ntitle: twice")], ["two keys 'title'", "line 3"]),
        ([("title: a machine", "title: 2024-13-45")], ["not YAML"]),
        ([("title: a machine", "like: ../other")], ["is like '../other'"]),
        ([("here: {hostnames: ['^nowhere$']}\n", "")], ["here"]),
        ([("'^nowhere$'", "''")], ["here.hostnames.0", "'.*'"]),
        ([("'^nowhere$'", "'a*'")], ["here.hostnames.0", "'.*'"]),
        (
            [("10m}\n", "10m}\n  - {name: gpu, scheduler: lsf, launcher: jsrun, time_limit: 1h}\n")],
            ["partitions", "'gpu'"],
        ),
        (
            [
                ("{devices: {value: 4, source: its maker}}", "{}"),
                ("10m}", "10m, launcher_options: ['-N {ranks_per_node}']}"),
            ],
            ["ranks_per_node", "gpu", "node.devices"],
        ),
        (
            [("{devices: {value: 4, source: its maker}}", "{}"), ("10m}", "10m, full_node_options: [--exclusive]}")],
            ["full_node_options", "gpu", "node.devices"],
        ),
    ],
)
def test_what_a_file_cant_have_is_refused(tmp_path: Path, changes: list[tuple[str, str]], told: list[str]) -> None:
    with pytest.raises(SystemFileError) as raised:
        read(tmp_path, *changes)
    for part in (str(tmp_path / "machine.yaml"), *told):
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_is_called_as_reframe_can_call_a_system(tmp_path: Path) -> None:
    with pytest.raises(SystemFileError, match=r"my\.cluster\.yaml .* at name: "):
        read(tmp_path, name="my.cluster")


@pytest.mark.parametrize(
    "option", ['--comment={"image": 1}', "--export=ALL,X={a}", "--x=${account}", "--x={}", "--x={0}", "--x={", "}"]
)
def test_braces_that_are_no_placeholder_stay_wherever_options_are(tmp_path: Path, option: str) -> None:
    quoted = "'" + option.replace("'", "''") + "'"
    every = ("access", "launcher_options", "full_node_options")
    more = ", ".join([*(f"{key}: [{quoted}]" for key in every), f"devices_option: {quoted}"])
    system = read(tmp_path, more=more)
    (partition,) = system.partitions
    assert all(getattr(partition, key) == (option,) for key in every)
    assert placeholders.replace(option, "account", "abc") == option
    (resource,) = settings._partition(system, partition)["resources"]
    assert resource["options"][0].format(num_gpus_per_node=4) == option


def test_devices_are_asked_for_by_the_file_or_by_slurm_s_default_or_not_at_all(tmp_path: Path) -> None:
    def asked(more: str, scheduler: str = "slurm") -> list[str]:
        system = read(tmp_path, ("scheduler: slurm", f"scheduler: {scheduler}"), more=more)
        resources = settings._partition(system, system.partitions[0]).get("resources", [])
        return [option.format(num_gpus_per_node=4) for one in resources for option in one["options"]]

    assert asked("") == asked("", "squeue") == ["--gpus-per-node=4"]
    assert asked("devices_option: '--gres=gpu:a100:{devices}'") == ["--gres=gpu:a100:4"]
    assert asked("devices_option: ''") == asked("", "pbs") == []


def test_a_file_that_is_only_planned_with_has_a_title_a_device_and_a_node(tmp_path: Path) -> None:
    start, _, _ = GOOD.partition("partitions:")
    (tmp_path / "plan.yaml").write_text(start.replace("here: {hostnames: ['^nowhere$']}\n", ""))
    system = systems.read(tmp_path / "plan.yaml")
    assert (system.partitions, system.is_here()) == ((), False)
    assert "plan.yaml has no partitions" in str(system.no_jobs())


def test_a_system_may_be_like_one_that_is_only_planned_with(tmp_path: Path) -> None:
    start, _, partitions = GOOD.partition("partitions:")
    (tmp_path / "plan.yaml").write_text(start)
    (tmp_path / "run.yaml").write_text(f"like: plan\npartitions:{partitions}")
    assert [one.name for one in systems.read(tmp_path / "run.yaml").partitions] == ["gpu"]


def test_longest_jobs_may_come_in_any_order(tmp_path: Path) -> None:
    more = "longest_jobs: {value: {9472: 12h, '91': 2h, 183: 6h}, source: its guide}"
    limits = read(tmp_path, more=more).partitions[0].longest_jobs
    assert limits is not None
    assert [limits.on(nodes) for nodes in (1, 91, 92, 183, 184, 9472, 9473)] == [
        "2h",
        "2h",
        "6h",
        "6h",
        "12h",
        "12h",
        None,
    ]


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        (["--ppn", "4"], True),
        (["--ppn=4 --depth=8"], True),
        (["-ppn 2"], True),
        (["-N", "4"], True),
        (["--map-by", "ppr:4:node:PE=18"], True),
        (["-npernode", "4"], True),
        (["-perhost=4"], True),
        (["--depth=8", "--cpu-bind", "depth"], False),
        (["-np", "4", "-n", "4", "-Nx"], False),
        (["--ppname"], False),
        ([], False),
    ],
)
def test_options_that_place_ranks_are_known(options: list[str], placed: bool) -> None:
    assert places_ranks(options) is placed


def test_every_scheduler_and_launcher_of_a_file_is_known_to_reframe_but_flux_where_it_isnt() -> None:
    from reframe.core.backends import getlauncher, getscheduler

    known = [settings.schedulers.OURS.get(name, name) for name in SCHEDULERS if name != "flux"]
    assert all(map(getscheduler, known))
    assert all(map(getlauncher, LAUNCHERS))
    assert placing("slurm", "srun", 4) == placing("slurm", "mpiexec", 4) == []
