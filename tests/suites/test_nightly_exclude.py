"""Slow nodes that ci/nightly leaves out: which, where there is room without them, and how Slurm is told."""

import math
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from running import option, succeed

import systems
from engine.errors import UsageError
from night.command import main
from night.exclude import check_scheduler, choose_nodes, largest_jobs, leave_out
from night.session import NightlyTest, NightRun
from reports.nights.nodes import LATELY, NodeEffect, nodes_of, slow_nodes
from reports.read.history import NODES, History, Night, NightJob
from systems.references import Key

HOSTS = [f"n{number}.local" for number in range(6)]
SLOW = HOSTS[1]


def draw_nights(*, slower: float = 1.06, count: int = 40) -> History:
    """Draw nights of two jobs of two nodes each, one of which is slow; beside times the jobs measure memory."""
    noise, nights = random.Random(3), []
    for number in range(count):
        jobs = []
        for _ in range(2):
            hosts = noise.sample(HOSTS, 2)
            seconds = noise.gauss(1.0, 0.01) * (slower if SLOW in hosts else 1.0)
            figures = {"time_per_iteration": (seconds, "s"), "peak_memory": (1e9, "B")}
            key = Key("gpu", "Test", "", "", 4, "", "")
            jobs.append(NightJob(key, False, "", figures, {NODES: ", ".join(hosts)}, {}, 1.0))
        nights.append(Night(str(number), datetime(2026, 9, 1, tzinfo=UTC), jobs, {}))
    return History("vcluster", tuple(nights))


def described(nodes: int, *, hashcode: str = "1", first: int = 0) -> dict[str, object]:
    cases = [
        {"partition": "gpu", "nodes": nodes, "skipped": ""},
        {"partition": "other", "nodes": 99, "skipped": "it has no room"},
    ]
    return {"hashcode": hashcode, "cases": cases, "fixture_jobs": [{"nodes": first}] if first else []}


def left_out(past: History, *tests: dict[str, object]) -> tuple[tuple[str, ...], str]:
    """Return the words for ReFrame in a night of the first of these tests, and what is said."""
    night = NightRun("n", "vcluster", Path(), math.inf)
    chosen = [NightlyTest("Test", str(tests[0]["hashcode"]), 1.0, "by its time limit", 1)]
    said = leave_out(night, tests, chosen, past)
    return night.reframe, said


def test_a_slow_node_is_left_out_by_the_name_that_slurm_has_of_it() -> None:
    past = draw_nights()
    (slow,) = slow_nodes(past.nights, LATELY)
    assert slow.node == SLOW
    assert slow.low < math.log(1.06) < slow.high
    words, said = left_out(past, described(5), described(6, hashcode="2"))
    assert words == ("-J", "exclude=n1")
    assert SLOW in said


@pytest.mark.parametrize("large", [described(6), described(1, first=6)])
def test_a_node_stays_where_the_largest_job_has_no_room_without_it(large: dict[str, object]) -> None:
    words, said = left_out(draw_nights(), large)
    assert words == ()
    assert SLOW in said


def test_without_a_slow_node_none_is_left_out() -> None:
    assert left_out(draw_nights(slower=1.0), described(1))[0] == ()


def test_a_node_is_tried_again_once_its_nights_are_past() -> None:
    past = draw_nights()
    since = [replace(night, jobs=[job for job in night.jobs if SLOW not in nodes_of(job)]) for night in past.nights]
    assert left_out(replace(past, nights=(*past.nights, *since[: LATELY[-1] // 2])), described(1))[0]
    assert not left_out(replace(past, nights=(*past.nights, *since, *since)), described(1))[0]


def test_the_fewest_last_nights_that_tell_count() -> None:
    usual, slow = draw_nights(slower=1.0, count=80).nights, draw_nights().nights[:20]
    assert [each.node for each in slow_nodes([*usual, *slow], LATELY)] == [SLOW]
    assert slow_nodes([*slow, *slow, *usual[:20]], LATELY) == []


def effect(node: str, size: float = 0.1) -> NodeEffect:
    return NodeEffect(node, 9, size, size / 2, 2 * size)


def test_of_several_slow_nodes_the_slowest_are_left_out_as_far_as_there_is_room() -> None:
    slow = [effect("a", 0.3), effect("b", 0.2), effect("c", 0.1), effect("d")]
    out, kept = choose_nodes(slow, {"one": {*"abcxy"}, "two": {*"cd"}}, {"one": 3, "two": 1})
    assert ([each.node for each in out], [each.node for each in kept]) == (["a", "b", "d"], ["c"])
    odd = [effect("n[1-99]"), effect("n1,n2"), effect("n1\n#SBATCH --wrap=x"), effect("-n")]
    assert choose_nodes(odd, {"one": {each.node for each in odd} | {*"abc"}}, {"one": 1})[0] == []


def test_the_largest_job_is_that_of_a_partition_that_can_run_it() -> None:
    assert largest_jobs([described(2), described(1, first=3)]) == {"gpu": 3}


@pytest.mark.parametrize("words", [("-J", "exclude=n1"), ("-Jx=n1",), ("--job-option=--exclude=n1",), ("-J", "-x n1")])
def test_nodes_are_left_out_by_one_option_alone(words: tuple[str, ...]) -> None:
    slurm = systems.load("vcluster")
    check_scheduler(slurm, ("-S", "iterations=5", "-J", "exclusive", "--exclude", "Peak"))
    with pytest.raises(UsageError, match="n1"):
        check_scheduler(slurm, words)


@pytest.mark.parametrize(
    ("words", "told"), [((), "partition cpu of local is local"), (("--against", "HEAD"), "--exclude-slow")]
)
def test_where_no_node_can_be_left_out_the_option_is_refused(tmp_path, capsys, words, told) -> None:
    assert main(["--system", "local", "--dir", str(tmp_path), "--exclude-slow", *words]) == 2
    assert told in capsys.readouterr().err


def test_what_the_systems_file_leaves_out_stays_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = systems.load("vcluster")
    access = ("--exclude=n3,n[7-9] --exclusive", "-C cpu")
    partition = slurm.partitions[0].model_copy(update={"access": access})
    monkeypatch.setattr("night.exclude.load", lambda name: slurm.model_copy(update={"partitions": (partition,)}))
    assert left_out(draw_nights(), described(1))[0] == ("-J", "exclude=n3,n[7-9],n1")


def test_slurm_is_told_in_every_job_script(tmp_path: Path) -> None:
    words, _ = left_out(draw_nights(), described(1))
    succeed(tmp_path, "-c", "suites/peak.py", "--system", "vcluster", "-n", "LaunchLatency", *words, "--dry-run")
    scripts = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    assert {option(script, "--exclude") for script in scripts} == {"n1"}
