"""What runs every night: what it takes of each system, what it tells, and that the engine accepts all of it."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from running import option, reframe

import systems
from engine.models.catalogue import lookup
from engine.peers.registry import COMPARISONS
from suites.base.listings import allocation
from suites.base.running import Worth

NIGHT = ["-c", "suites", "-R", "-t", "nightly"]
NODES, NODE_HOURS, MINUTES = 4, 2, 30


@dataclass(frozen=True, slots=True)
class Night:
    """The tests of a system's night as --describe tells them, and their jobs with those of fixtures, each once."""

    tests: list[dict[str, Any]]

    @property
    def jobs(self) -> list[dict[str, Any]]:
        every = [*self.tests, *(job for test in self.tests for job in test["fixture_jobs"])]
        return list({job["unique_name"]: job for job in every if job["nodes"]}.values())

    def of(self, name: str) -> list[dict[str, Any]]:
        return [test for test in self.tests if test["@class"] == name]


def described(folder: Path, *arguments: str) -> Night:
    done = reframe(folder, *arguments, "--describe")
    assert done.code == 0, done.out + done.err
    return Night(json.loads(done.out[done.out.index("[\n") :]))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Night]:
    return cache(lambda name: described(tmp_path_factory.mktemp(name), *NIGHT, "--system", name))


@pytest.fixture(params=systems.names())
def night(request: pytest.FixtureRequest, nights: Callable[[str], Night]) -> tuple[str, Night]:
    return request.param, nights(request.param)


def test_a_night_fits_four_nodes_for_half_an_hour_with_two_node_hours(night: tuple[str, Night]) -> None:
    _, found = night
    assert max(job["nodes"] for job in found.jobs) <= NODES
    assert sum(job["nodes"] * job["time_limit_s"] for job in found.jobs) <= NODE_HOURS * 3600
    assert sum(job["time_limit_s"] for job in found.jobs) <= MINUTES * 60
    for job in found.jobs:
        skipped = any(case["skipped"] for case in job.get("cases", []))
        assert job["node_hours"] == pytest.approx(0 if skipped else job["nodes"] * job["time_limit_s"] / 3600)


ONE_OF_EACH = ("Peak", "MemoryBandwidth", "LaunchLatency", "Bandwidth", "Validation", "Baseline")
TRAINED = ("WeakScaling", "WeakScalingOfImages")
OVERLAPS = {"local": 1, "vcluster": 2}
GPTS = {"local": 3}
UNETS = {"frontier": 1, "local": 1, "perlmutter": 1, "vcluster": 1}


def test_a_night_trains_from_end_to_end_and_has_what_narrows_a_slowdown_down(night: tuple[str, Night]) -> None:
    """Which is what every selection must contain."""
    name, found = night
    for one in ONE_OF_EACH:
        assert len(found.of(one)) == 1, one
    assert len(found.of("OverlapAblation")) == OVERLAPS.get(name, 0)
    trained = Counter(lookup(test["model"]).family for one in TRAINED for test in found.of(one))
    assert trained == Counter(gpt=GPTS.get(name, 1), unet=UNETS.get(name, 0))
    peers = [peer for peer in COMPARISONS.values() if f"-{peer.name}-" in found.of("Baseline")[0]["name"]]
    assert [peer.library for peer in peers] == [None], "it takes no environment of its own"
    assert len(found.tests) <= 10 + trained["unet"]
    assert {test["@class"] for test in found.tests if test["worth"] == Worth.TRAINING} <= {*TRAINED}
    assert all(test["worth"] > Worth.NOTHING for test in found.tests)
    if name in ("perlmutter", "perlmutter80", "frontier", "alps", "vcluster"):
        assert {test["nodes"] for one in (*TRAINED, "Bandwidth") for test in found.of(one)} == {NODES}


def test_a_list_ends_with_what_it_costs(nights: Callable[[str], Night], tmp_path: Path) -> None:
    found = nights("alps")
    done = reframe(tmp_path, *NIGHT, "--system", "alps", "-l")
    assert done.code == 0, done.out
    nodes, hours = max(job["nodes"] for job in found.jobs), sum(job["node_hours"] for job in found.jobs)
    minutes = sum(job["time_limit_s"] for job in found.jobs) / 60
    told = f"{len(found.tests)} tests, at most {hours:.1f} node-hours: up to {nodes} node{'s' * (nodes > 1)}, "
    assert f"{told}{minutes:.0f} minutes one after the other\n" in done.out
    assert f"Found {len(found.tests)} check(s)" in done.out


def test_the_engine_accepts_every_job_of_a_night(tmp_path: Path) -> None:
    done = reframe(tmp_path, *NIGHT, "--system", "perlmutter", "--dry-run", PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
    scripts = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    asked = [script for script in scripts if "#SBATCH" in script]
    assert len(asked) == len(scripts) - 1, "the text takes no node"
    assert all(int(option(script, "--nodes")) <= NODES for script in asked)
    assert all(re.search(r"#SBATCH --time=0:[3-6]:0", script) for script in asked)


def by_ranks(found: Night) -> list[dict[str, Any]]:
    return sorted(found.tests, key=lambda test: int(test["num_tasks"]))


def test_a_limit_that_a_user_sets_counts(tmp_path: Path) -> None:
    one = ["-c", "suites/weak_scaling.py", "--system", "frontier", "-n", "night-32-|par4d-64-"]
    night, other = by_ranks(described(tmp_path / "a", *one))
    assert (night["time_limit_s"], night["nodes"]) == (240, 4)
    assert (other["time_limit_s"], other["nodes"]) == (1800, 8), "the partition's, as before"
    night, other = by_ranks(described(tmp_path / "b", *one, "-S", "time_limit=90m", "-S", "ranks_per_node=2"))
    assert (night["time_limit_s"], night["nodes"], night["node_hours"]) == (5400, 16, 24)
    assert (other["time_limit_s"], other["nodes"]) == (5400, 32)


def test_what_is_not_ours_costs_nothing_that_is_known() -> None:
    assert allocation([object()]) is None
