"""System files and their partitions: what they have, what is replaced in them, and how bad ones are refused."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import systems
from engine.errors import UsageError
from engine.published import select
from systems import Count, Fact, SystemFileError, settings
from systems.partition import LAUNCHERS, SCHEDULERS, fill, places_ranks, placing

UNPUBLISHED = {"local", "vcluster", "vcluster-pairs"}
PUBLISHED = sorted(set(systems.names()) - UNPUBLISHED)

DEVICE = "device: {name: a device, kind: cuda, peak_flops: {bf16: {value: 1.0e+12, source: its data sheet}}}"
NODE = "{devices: {value: 4, source: its maker}}"
PARTITION = {"name": "gpu", "scheduler": "slurm", "launcher": "srun", "time_limit": "10m"}
WORDS = "{name: gpu, scheduler: slurm, launcher: srun, time_limit: 10m}"
GOOD = f"""
title: a machine
here: {{hostnames: ['^nowhere$']}}
{DEVICE}
node: {NODE}
partitions:
  - {WORDS}
"""


def read(folder: Path, *changes: tuple[str, str], more: str = "", name: str = "machine") -> systems.System:
    """Read that file with changes, and with more or other keys of its partition."""
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    if more:
        own = {key.split(":")[0] for key in more.split(", ") if ":" in key}
        kept = ", ".join(f"{key}: {value}" for key, value in PARTITION.items() if key not in own)
        before, found, after = text.partition(WORDS)
        assert found
        text = f"{before}{{{kept}, {more}}}{after}"
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return systems.read(file)


def refusal(folder: Path, *changes: tuple[str, str], more: str = "") -> str:
    """Return the sentence by which that file is refused."""
    with pytest.raises(SystemFileError) as raised:
        read(folder, *changes, more=more)
    assert str(folder / "machine.yaml") in str(raised.value)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def facts(record: BaseModel) -> Iterator[Fact | Count]:
    """Every fact below a record."""
    for _, value in record:
        below = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        for item in below:
            if isinstance(item, Fact | Count):
                yield item
            elif isinstance(item, BaseModel):
                yield from facts(item)


@pytest.mark.parametrize("name", systems.names())
def test_every_system_file_is_valid_named_as_its_file_and_measures_nothing_beside_another(name: str) -> None:
    system = systems.load(name)
    assert system.name == name
    assert all(partition.max_jobs == 1 for partition in system.partitions)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_system_has_sourced_facts_and_a_memory_that_is_read_in_less_than_a_second(name: str) -> None:
    system = systems.load(name)
    found = list(facts(system))
    assert len(found) >= 7
    assert all(fact.source.strip() for fact in found)
    device = system.device
    assert device.memory_bytes
    assert device.memory_bytes_per_s
    assert 0.01 < device.memory_bytes.value / device.memory_bytes_per_s.value < 0.1


@pytest.mark.parametrize("name", sorted(UNPUBLISHED))
def test_nothing_is_claimed_about_the_processor_of_an_unknown_machine(name: str) -> None:
    assert list(facts(systems.load(name).device)) == []


def test_the_peaks_are_those_of_the_published_table() -> None:
    peaks = [number for number in select(study="peak") if number.paper in ("axonn-sc24", "axonn-ipdps22")]
    assert {number.system for number in peaks} >= {"Perlmutter", "Frontier", "Alps", "Summit"}
    for number in peaks:
        device = systems.load(number.system.lower()).device
        of_system = device.peak_flops if number.metric == "advertised" else device.empirical_peak_flops
        assert of_system[number.dtype].value == pytest.approx(number.si)


@pytest.mark.parametrize(
    ("more", "parts"),
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
        ("time_limit: soon", ["partitions.0.time_limit", "soon"]),
        ("longest_jobs: {value: {91: 2h}}", ["longest_jobs.source", "required"]),
        ("transport: {remedy: none}", ["0.transport.networks", "required"]),
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
def test_a_bad_partition_is_refused_by_file_key_and_value(tmp_path: Path, more: str, parts: list[str]) -> None:
    assert [part for part in parts if part not in refusal(tmp_path, more=more)] == []


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ([("source: its data sheet", "sauce: hearsay")], ["device.peak_flops.bf16.source", "required"]),
        ([("value: 1.0e+12", "value: -1.0")], ["device.peak_flops.bf16.value", "greater than 0", "-1.0"]),
        ([("value: 1.0e+12", "value: fast")], ["device.peak_flops.bf16.value", "number", "fast"]),
        ([("bf16:", "bf17:")], ["device.peak_flops.bf17", "'bf16'"]),
        ([("kind: cuda", "kind: tpu")], ["device.kind", "'cpu' or 'cuda'", "tpu"]),
        ([(" kind: cuda,", "")], ["at device", "systems/devices has no 'a device'"]),
        ([("title: a machine", "like: nowhere")], ["is like 'nowhere'"]),
        ([("title: a machine", "like: machine")], ["is like 'machine'"]),
        ([("title: a machine", "like: ../other")], ["is like '../other'"]),
        ([("title: a machine", "titel: a machine")], ["title", "required"]),
        ([("title: a machine", "title: [a")], ["valid YAML"]),
        ([("title: a machine", "title: 2024-13-45")], ["valid YAML"]),
        ([("title: a machine", "title: a machine\nname: another")], ["another.yaml"]),
        ([("title: a machine", "title: a machine\ntitle: twice")], ["two keys 'title'", "line 3"]),
        ([(NODE, "{gpus: 4}")], ["node.gpus", "not permitted"]),
        ([("^nowhere$", "(nowhere")], ["here.hostnames.0", "regular expression"]),
        ([("here: {hostnames: ['^nowhere$']}\n", "")], ["here"]),
        ([("'^nowhere$'", "''")], ["here.hostnames.0", "'.*'"]),
        ([("'^nowhere$'", "'a*'")], ["here.hostnames.0", "'.*'"]),
        (
            [("10m}\n", "10m}\n  - {name: gpu, scheduler: lsf, launcher: jsrun, time_limit: 1h}\n")],
            ["partitions", "'gpu'"],
        ),
        (
            [(NODE, "{}"), ("10m}", "10m, launcher_options: ['-N {ranks_per_node}']}")],
            ["ranks_per_node", "node.devices"],
        ),
        ([(NODE, "{}"), ("10m}", "10m, full_node_options: [--exclusive]}")], ["full_node_options", "node.devices"]),
    ],
)
def test_a_bad_file_is_refused_by_file_key_and_value(
    tmp_path: Path, changes: list[tuple[str, str]], parts: list[str]
) -> None:
    assert [part for part in parts if part not in refusal(tmp_path, *changes)] == []


def test_an_empty_a_missing_or_an_ill_named_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    with pytest.raises(SystemFileError, match="can't be read"):
        systems.read(file)
    file.write_text("")
    with pytest.raises(SystemFileError, match="keys of a system"):
        systems.read(file)
    with pytest.raises(SystemFileError, match=r"my\.cluster\.yaml .* at name: "):
        read(tmp_path, name="my.cluster")


def test_an_unknown_system_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="frontier"):
        systems.load("frontire")


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
    assert fill(option, "account", "abc") == option
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


def test_a_queue_s_limit_is_that_of_the_job_s_nodes_in_whatever_order_the_file_has_them(tmp_path: Path) -> None:
    longest = "longest_jobs: {value: {9472: 12h, '91': 2h, 183: 6h}, source: its guide}"
    for system in (systems.load("frontier"), read(tmp_path, more=longest)):
        limits = system.partitions[0].longest_jobs
        assert limits is not None
        expected = ["2h", "2h", "6h", "6h", "12h", "12h", None]
        assert [limits.on(nodes) for nodes in (1, 91, 92, 183, 184, 9472, 9473)] == expected
    assert list(map(systems.seconds, ("2h", "30m", "1h30m"))) == [7200, 1800, 5400]


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        *((words, True) for words in ("--ppn 4", "--ppn=4 --depth=8", "-ppn 2", "-N 4", "--map-by ppr:4:node:PE=18")),
        *((words, True) for words in ("-npernode 4", "-perhost=4")),
        *((words, False) for words in ("--depth=8 --cpu-bind depth", "-np 4 -n 4 -Nx", "--ppname", "")),
    ],
)
def test_options_that_place_ranks_are_known(options: str, placed: bool) -> None:
    assert places_ranks([options]) is places_ranks(options.split()) is placed


def test_every_scheduler_and_launcher_of_a_file_is_known_to_reframe_but_flux_where_it_isnt() -> None:
    from reframe.core.backends import getlauncher, getscheduler

    known = [settings.schedulers.OURS.get(name, name) for name in SCHEDULERS if name != "flux"]
    assert all(map(getscheduler, known))
    assert all(map(getlauncher, LAUNCHERS))
    assert placing("slurm", "srun", 4) == placing("slurm", "mpiexec", 4) == []


def test_a_system_is_recognised_by_its_host_name_or_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(tmp_path, ("^nowhere$", f"^{socket.gethostname()}$")).is_here()
    assert not read(tmp_path).is_here()
    assert systems.here().name == "local"
    monkeypatch.setenv("NERSC_HOST", "perlmutter")
    assert systems.load("perlmutter").is_here()
    assert systems.load("perlmutter80").is_here()
    assert not systems.load("frontier").is_here()
    assert systems.here().name == "perlmutter"


def test_a_system_like_another_has_whole_keys_of_its_own_and_so_in_partitions_and_all_else_of_the_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.yaml").write_text(GOOD)
    like, partition = tmp_path / "like.yaml", "{name: gpu, access: [--constraint=large]}"
    like.write_text(f"like: one\ndevice: {{name: another, kind: cuda}}\npartitions: [{partition}]")
    one, found = systems.read(tmp_path / "one.yaml"), systems.read(like)
    assert (found.name, found.device.name, found.device.peak_flops) == ("like", "another", {})
    of_its_own = {"access": ("--constraint=large",)}
    assert found.partitions == (one.partitions[0].model_copy(update=of_its_own),)
    rest = {"name": "one", "device": one.device, "partitions": one.partitions}
    assert found.model_copy(update=rest) == one


@pytest.mark.parametrize("partitions", ["[{name: cpu}]", "[gpu]", "gpu", "[{access: [a]}]"])
def test_a_partition_that_the_other_system_hasnt_is_refused(tmp_path: Path, partitions: str) -> None:
    (tmp_path / "one.yaml").write_text(GOOD)
    (tmp_path / "like.yaml").write_text(f"like: one\npartitions: {partitions}")
    with pytest.raises(SystemFileError, match=r"like\.yaml .* at partitions"):
        systems.read(tmp_path / "like.yaml")


def test_the_other_nodes_of_perlmutter_differ_in_their_cards_and_their_number_alone() -> None:
    of_40, of_80 = systems.load("perlmutter"), systems.load("perlmutter80")
    (usual,), (large,) = of_40.partitions, of_80.partitions
    assert [option for option in large.access if option not in usual.access] == ["--constraint=gpu&hbm80g"]
    assert [option for option in usual.access if option not in large.access] == ["--constraint=gpu&hbm40g"]
    same = {"name": of_40.name, "title": of_40.title, "device": of_40.device, "nodes": of_40.nodes}
    same |= {"partitions": of_40.partitions}
    assert of_80.model_copy(update=same) == of_40
    assert large.model_copy(update={"access": usual.access}) == usual
    assert of_80.device.memory_bytes.value == 2 * of_40.device.memory_bytes.value  # type: ignore[union-attr]
    assert not of_80.device.empirical_peak_flops, "the paper's is of a card of 40 GB"


@pytest.mark.parametrize("name", ["alps", "perlmutter", "perlmutter80"])
def test_where_gpus_reach_each_others_memory_every_rank_sees_all_of_its_node(name: str) -> None:
    system = systems.load(name)
    (partition,) = system.partitions
    assert "--gpu-bind=none" in partition.launcher_options
    every = [*partition.launcher_options, *partition.full_node_options]
    assert not any(option.startswith("--gpus-per-task") for option in every)
    assert not any("=map_" in option or "=mask_" in option for option in partition.launcher_options), "of entire nodes"
    assert system.node.devices is not None
    for domains in (option.partition("map_ldom:")[2] for option in partition.full_node_options):
        assert sorted(map(int, domains.split(","))) == list(range(system.node.devices.value))
    assert sum(option.startswith("--cpu-bind=") for option in every) == 1


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
def test_where_nccl_needs_a_plugin_it_is_expected_and_asked_for_by_one_of_its_names(name: str) -> None:
    (partition,) = systems.load(name).partitions
    assert partition.transport is not None
    expected = partition.transport.networks.value
    assert "Socket" not in expected
    assert partition.transport.nccl_net in expected
    assert partition.transport.provider == "cxi"
    assert not any("NCCL_NET=" in command for command in partition.prepare_cmds), "settings.py asks for it"
