"""The system files: what they hold, and what a bad one is told."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import systems
from engine.errors import UsageError
from engine.published import select
from systems import Count, Fact, SystemFileError

UNPUBLISHED = {"local", "vcluster"}

GOOD = """
title: a machine
here: {hostnames: ['^nowhere$']}
device:
  name: a device
  kind: cuda
  peak_flops:
    bf16: {value: 1.0e+12, source: its data sheet}
node: {}
partitions:
  - {name: gpu, scheduler: slurm, launcher: srun, time_limit: 10m}
"""


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
def test_every_system_file_is_valid_and_named_as_its_file(name: str) -> None:
    assert systems.load(name).name == name


@pytest.mark.parametrize("name", sorted(set(systems.names()) - UNPUBLISHED))
def test_every_published_system_has_facts_and_each_names_its_source(name: str) -> None:
    found = list(facts(systems.load(name)))
    assert len(found) >= 7
    assert all(fact.source.strip() for fact in found)


def test_the_expected_systems_are_there() -> None:
    assert {"perlmutter", "frontier", "alps", "summit", "local"} <= set(systems.names())


def test_the_peaks_are_those_of_the_published_table() -> None:
    peaks = [number for number in select(study="peak") if number.paper in ("axonn-sc24", "axonn-ipdps22")]
    assert {number.system for number in peaks} >= {"Perlmutter", "Frontier", "Alps", "Summit"}
    for number in peaks:
        device = systems.load(number.system.lower()).device
        of_system = device.peak_flops if number.metric == "advertised" else device.empirical_peak_flops
        assert of_system[number.dtype].value == pytest.approx(number.si)


@pytest.mark.parametrize("name", sorted(set(systems.names()) - UNPUBLISHED))
def test_the_memory_of_a_published_systems_device_has_a_bandwidth_by_which_it_is_read_in_less_than_a_second(
    name: str,
) -> None:
    device = systems.load(name).device
    assert device.memory_bytes
    assert device.memory_bytes_per_s
    assert 0.01 < device.memory_bytes.value / device.memory_bytes_per_s.value < 0.1


@pytest.mark.parametrize("name", sorted(UNPUBLISHED))
def test_nothing_is_claimed_about_the_processor_of_an_unknown_machine(name: str) -> None:
    assert list(facts(systems.load(name).device)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("source: its data sheet", "sauce: hearsay"), ["device.peak_flops.bf16.source", "required"]),
        (("value: 1.0e+12", "value: -1.0"), ["device.peak_flops.bf16.value", "greater than 0", "-1.0"]),
        (("value: 1.0e+12", "value: fast"), ["device.peak_flops.bf16.value", "number", "fast"]),
        (("bf16:", "bf17:"), ["device.peak_flops.bf17", "'bf16'"]),
        (("kind: cuda", "kind: tpu"), ["device.kind", "'cpu' or 'cuda'", "tpu"]),
        (("  kind: cuda\n", ""), ["at device", "systems/devices has no 'a device'", "its kind and facts"]),
        (("title: a machine", "like: nowhere"), ["is like 'nowhere'", "a file there that is like no other"]),
        (("title: a machine", "like: broken"), ["is like 'broken'", "a file there that is like no other"]),
        (("title: a machine", "titel: a machine"), ["title", "required"]),
        (("node: {}", "node: {gpus: 4}"), ["node.gpus", "not permitted"]),
        (("^nowhere$", "(nowhere"), ["here.hostnames.0", "regular expression"]),
        (("time_limit: 10m", "time_limit: soon"), ["partitions.0.time_limit", "soon"]),
        (("title: a machine", "title: [a"), ["not YAML"]),
        (
            (", time_limit: 10m", ", time_limit: 10m, longest_jobs: {value: {91: 2h}}"),
            ["longest_jobs.source", "required"],
        ),
        ((", time_limit: 10m", ", time_limit: 10m, transport: {remedy: none}"), ["0.transport.networks", "required"]),
    ],
)
def test_a_bad_file_is_told_the_file_the_key_and_what_was_expected(
    tmp_path: Path, change: tuple[str, str], told: list[str]
) -> None:
    file = tmp_path / "broken.yaml"
    assert GOOD.replace(*change) != GOOD
    file.write_text(GOOD.replace(*change))
    with pytest.raises(SystemFileError) as raised:
        systems.read(file)
    for part in [str(file), *told]:
        assert part in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_empty_or_missing_file_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    with pytest.raises(SystemFileError, match="can't be read"):
        systems.read(file)
    file.write_text("")
    with pytest.raises(SystemFileError, match="keys of a system"):
        systems.read(file)


def test_an_unknown_system_is_told_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="did you mean frontier"):
        systems.load("frontire")


def test_a_system_is_recognised_by_its_host_name_or_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(GOOD.replace("['^nowhere$']", f"['^{socket.gethostname()}$']"))
    assert systems.read(file).is_here()
    file.write_text(GOOD)
    assert not systems.read(file).is_here()
    monkeypatch.setenv("NERSC_HOST", "perlmutter")
    assert systems.load("perlmutter").is_here()
    assert not systems.load("frontier").is_here()


def test_this_machine_is_local_unless_it_is_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert systems.here().name == "local"
    monkeypatch.setenv("LMOD_SYSTEM_NAME", "frontier")
    assert systems.here().name == "frontier"


def test_a_queue_s_limit_is_that_of_the_job_s_nodes() -> None:
    limits = systems.load("frontier").partitions[0].longest_jobs
    assert limits is not None
    assert [limits.on(nodes) for nodes in (1, 91, 92, 183, 184, 9472, 9473)] == [
        *("2h", "2h", "6h", "6h", "12h", "12h", None)
    ]


@pytest.mark.parametrize(("limit", "seconds"), [("2h", 7200), ("30m", 1800), ("1h30m", 5400)])
def test_a_time_limit_is_so_many_seconds(limit: str, seconds: int) -> None:
    assert systems.seconds(limit) == seconds


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
def test_a_partition_that_the_other_system_hasnt_is_told_what_it_lacks(tmp_path: Path, partitions: str) -> None:
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


def test_perlmutter_by_itself_is_the_one_with_the_usual_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERSC_HOST", "perlmutter")
    assert systems.load("perlmutter80").is_here()
    assert systems.here().name == "perlmutter"


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


@pytest.mark.parametrize("name", systems.names())
def test_two_measurements_never_run_beside_each_other(name: str) -> None:
    assert all(partition.max_jobs == 1 for partition in systems.load(name).partitions)
