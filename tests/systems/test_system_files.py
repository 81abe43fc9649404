"""The system files: what they hold, and what a bad one is told."""

import csv
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import systems
from engine.errors import UsageError
from systems import Count, Fact, SystemFileError

PUBLISHED = Path(systems.__file__).parents[1] / "reports" / "published" / "peaks.csv"
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
    every = list(csv.DictReader(PUBLISHED.open()))
    rows = [row for row in every if row["source"].startswith(("axonn-sc24", "axonn-ipdps22"))]
    assert {row["system"] for row in rows} >= {"Perlmutter", "Frontier", "Alps"}
    for row in rows:
        device = systems.load(row["system"].lower()).device
        peaks = device.peak_flops if row["metric"] == "advertised" else device.empirical_peak_flops
        if row["dtype"] in peaks:
            assert peaks[row["dtype"]].value == pytest.approx(float(row["value"]) * 1e12)
        else:
            pytest.fail(f"{row['system']} has no {row['metric']} peak in {row['dtype']}")


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
        *("2h", "2h", "6h", "6h", "12h", "12h", None),
    ]


@pytest.mark.parametrize(("limit", "seconds"), [("2h", 7200), ("30m", 1800), ("1h30m", 5400)])
def test_a_time_limit_is_so_many_seconds(limit: str, seconds: int) -> None:
    assert systems.seconds(limit) == seconds


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
