"""Partitions as a system's file describes them bound their jobs: one function says why a job can't run."""

import os
import re
from typing import Any

import pytest
from test_series import STUDIES

import systems
from suites.base import feasible, series
from suites.base.feasible import Job, obstacle
from systems import Partition, System

A100, V100, MI250X = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "AMD Instinct MI250X"
QUEUE = {"name": "p", "scheduler": "slurm", "launcher": "srun", "time_limit": "30m"}
DESK = {**QUEUE, "scheduler": "local", "launcher": "torchrun-one-node"}


def said(value: Any) -> dict[str, Any]:
    return {"value": value, "source": "these tests"}


def machine(device: str | dict[str, Any] = A100, devices: int | None = 4, nodes: int | None = None, **partition: Any):
    """A system of one partition, and that: what a planted file would hold."""
    given = {"name": device} if isinstance(device, str) else device
    system = System.model_validate(
        {
            "name": "planted",
            "title": "planted",
            "here": {"hostnames": ["^planted$"]},
            "device": given,
            "node": {"devices": said(devices)} if devices else {},
            "partitions": [QUEUE | partition],
        }
        | ({"nodes": said(nodes)} if nodes else {})
    )
    return system, system.partitions[0]


def why(at: tuple[System, Partition], ranks: int, **job: Any) -> str | None:
    return obstacle(*at, Job(ranks, feasible.per_node(at[0], ranks), **job))


def test_a_job_takes_no_more_nodes_than_the_machine_has() -> None:
    at = machine(nodes=8)
    assert why(at, 32) is None
    assert re.search("16 nodes.* 8 nodes", str(why(at, 64)))
    assert "10 nodes" in str(obstacle(*at, Job(10, ranks_of_a_node=1)))
    assert why(machine(), 32768) is None, "nothing says how many it has"


@pytest.mark.parametrize(
    "partition", [DESK, {"launcher": "torchrun-one-node"}, {**DESK, "launcher": "mpirun"}, {"scheduler": "local"}]
)
def test_what_is_one_node_gets_no_more_ranks_than_it_has_gpus(partition: dict[str, Any]) -> None:
    at = machine(devices=2, **partition)
    assert why(at, 2) is None
    assert re.search("2 GPUs.* 4 ranks", str(why(at, 4)))
    assert feasible.most_nodes(*at) == 1


def test_of_gpus_that_the_file_does_not_count_there_are_those_that_pytorch_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = machine(devices=None, **DESK)
    monkeypatch.setattr(feasible, "_gpus_here", lambda: 2)
    assert why(at, 2) is None
    assert "2 GPUs" in str(why(at, 3))
    monkeypatch.setattr(feasible, "_gpus_here", lambda: 0)
    assert why(at, 1) is None
    assert "node: devices" in str(why(at, 2))


def test_a_rank_takes_a_core_where_none_may_be_shared() -> None:
    here = systems.load("local")
    cores = max(os.cpu_count() or 1, feasible.FEWEST_CORES)
    job = {"device": "cpu"}
    assert why((here, here.partitions[0]), cores, **job) is None
    assert "-S oversubscribe=yes" in str(why((here, here.partitions[0]), cores + 1, **job))
    assert why((here, here.partitions[0]), cores + 1, **job, oversubscribe=True) is None


def test_a_queue_takes_so_many_nodes_each_for_so_long() -> None:
    at = machine(longest_jobs=said({2: "10m", 4: "1h"}))
    assert why(at, 8, time_limit_s=600) is None
    assert "after 10m" in str(why(at, 8, time_limit_s=601))
    assert why(at, 16, time_limit_s=3600) is None
    assert re.search(r"5 nodes.* planted:p .*\b4\b", str(why(at, 20, time_limit_s=60)))
    assert why(at, 8, time_limit_s=None) is None, "the user's own affair"
    assert "5 nodes" in str(why(at, 20, time_limit_s=None))


@pytest.mark.parametrize(
    ("device", "precision", "fits"),
    [
        (V100, "bf16", False),
        (V100, "tf32", False),
        (V100, "fp16", True),
        (A100, "bf16", True),
        (MI250X, "tf32", False),
        ({"name": "GPU X", "kind": "cuda"}, "bf16", True),
        ({"name": "GPU X", "kind": "cuda", "peak_flops": {"fp16": said(1e14)}}, "bf16", False),
        ({"name": "GPU X", "kind": "cuda", "peak_flops": {"fp16": said(1e14)}}, "fp32", True),
        ({"name": "GPU X", "kind": "cuda", "empirical_peak_flops": {"bf16": said(1e14)}}, "bf16", True),
    ],
)
def test_a_device_has_the_number_formats_of_its_known_peaks(device: Any, precision: str, fits: bool) -> None:
    reason = why(machine(device), 4, number_format=precision)
    assert reason is None if fits else precision in str(reason)


@pytest.mark.parametrize(
    ("device", "features", "taken"),
    [
        (A100, [], True),
        (A100, ["gpu"], True),
        (A100, ["gpu", "cuda", "nccl"], True),
        (A100, ["cpu", "gloo"], False),
        (A100, ["cpu", "gpu"], True),
        (A100, ["gpu", "rocm"], False),
        (MI250X, ["gpu", "rocm"], True),
        (MI250X, ["gpu", "cuda"], False),
        (MI250X, ["highmem"], True),
        ({"name": "GPU X", "kind": "cuda"}, ["gpu", "rocm"], True),
        ({"name": "a core", "kind": "cpu"}, ["gpu", "cuda"], False),
        ({"name": "a core", "kind": "cpu"}, ["cpu"], True),
    ],
)
def test_a_partition_has_the_devices_that_its_features_tell(device: Any, features: list[str], taken: bool) -> None:
    system, partition = machine(device, features=features)
    assert (feasible.other_kind(system, partition, system.device.kind) is None) is taken
    other = "cpu" if system.device.kind == "cuda" else "cuda"
    assert feasible.other_kind(system, partition, other) is None, "a device that -S asks for is the user's own affair"


def test_a_test_of_whole_nodes_may_take_as_many_as_there_are() -> None:
    assert feasible.most_nodes(*machine()) is None
    assert feasible.most_nodes(*machine(nodes=3)) == 3
    assert feasible.most_nodes(*machine(nodes=8, longest_jobs=said({2: "1h"}))) == 2


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", systems.names())
def test_no_queue_ends_a_job_before_its_time_limit(study: str, name: str) -> None:
    system = systems.load(name)
    devices = system.nodes and system.node.devices and system.nodes.value * system.node.devices.value
    for point in series.points(study, name):
        if devices and point.devices > devices:
            continue  # refused before any queue
        for partition in system.partitions:
            limit = systems.seconds(point.time_limit or partition.time_limit)
            job = Job(
                point.devices,
                feasible.per_node(system, point.devices, point.series.ranks_per_node),
                device=system.device.kind,
                time_limit_s=limit,
                oversubscribe=True,
            )
            assert obstacle(system, partition, job) is None
