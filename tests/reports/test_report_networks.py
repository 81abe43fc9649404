"""The network that carried a job: shown on the pages, and never pooled with another."""

import csv
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order
from sample_ablation import ablation
from sample_results import train, transport
from test_report_overlap import table

from engine.result.schema import Result
from engine.result.schema.machine import Transport
from reports.frames.origin import network, words


def over(result: Result, name: str, **told: Any) -> Result:
    return result.model_copy(update={"transport": transport(name, **told)})


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (None, ""),
        (transport("tcp", "gloo"), "tcp"),
        (transport("AWS Libfabric", provider="cxi"), "AWS Libfabric (cxi)"),
        (transport("Socket", interfaces="hsn0"), "Socket on hsn0"),
        (transport(None, unread="the log names none"), "unknown"),
    ],
)
def test_a_network_is_told_by_name_provider_and_interface(told: Transport | None, name: str) -> None:
    assert network(told) == name
    assert words(told) == (f"{told.backend}: {name}" if told else "")


def test_networks_of_ranks_that_differ_are_each_named_once_in_a_fixed_order() -> None:
    parts = [transport(name).networks[0] for name in ("Socket", "IB", "Socket")]
    told = Transport(backend="nccl", library="NCCL 2.21.5", networks=tuple(parts))
    assert network(told) == "IB and Socket"
    assert in_order(words(told), "NCCL 2.21.5", "IB", "Socket", within=5)


def test_runs_over_different_networks_are_different_points_and_old_ones_count_apart() -> None:
    runs = [over(train(job=0), "IB"), over(train(job=1), "IB"), over(train(time_s=30.0, job=2), "Socket")]
    found = table(*runs, train(job=3, version=2)).set_index("network")
    assert found["jobs"].to_dict() == {"IB": 2, "Socket": 1, "": 1}
    assert found.loc["Socket", "time_s"] == pytest.approx(30.0)
    assert found.loc["IB", "time_s"] == pytest.approx(18.0)


def test_a_job_that_failed_before_it_knew_its_network_counts_with_those_of_its_setting() -> None:
    lost = train(failure="rank 3 died", job=5)
    (point,) = table(over(train(), "IB"), lost).to_dict("records")
    assert (point["network"], point["jobs"], point["failed"]) == ("IB", 1, 1)
    both = table(over(train(), "IB"), over(train(job=1), "Socket"), lost)
    assert dict(zip(both["network"], both["failed"], strict=True)) == {"IB": 0, "Socket": 0, "": 1}


def test_a_gain_is_over_none_of_the_same_network() -> None:
    slow, fast = train(overlap="none", time_s=36.0, job=1), train(overlap="none", time_s=20.0, job=2)
    found = table(over(train(), "IB"), over(slow, "Socket"), over(fast, "IB"))
    (gain,) = found["gain_none"].dropna()
    assert gain == pytest.approx(1 - 18.0 / 20.0)


def test_the_pages_name_the_network(tmp_path: Path) -> None:
    lanes = [over(run, "tcp", backend="gloo", interfaces="eth0") for run in ablation(jobs=2)]
    built(tmp_path, [over(train(), "Socket", interfaces="hsn0"), *lanes])
    data = tmp_path / "site" / "data"
    (points,) = data.glob("weak_scaling-*-points.csv")
    assert [row["network"] for row in csv.DictReader(points.open())] == ["Socket on hsn0"]
    rows = list(csv.DictReader((data / "weak_scaling-provenance.csv").open()))
    assert [row["transport"] for row in rows] == ["nccl: Socket on hsn0"]
    assert in_order((tmp_path / "site" / "overlap.html").read_text(), "4 nodes", "eth0")
