"""Nights: what they take of each system, what ci/nightly chooses and tells, and the proof of their culprits."""

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from forked_python import forked_python
from prove_nights import FAULTS, processor_times, wait_until_idle
from running import option, reframe, succeed
from waiting import LONG_S, until

import systems
from engine import processes
from engine.errors import RunError
from engine.models.catalogue import lookup
from engine.peers.registry import COMPARISONS
from night.command import main
from night.procedure import nightly_tests, run, select
from night.session import NightlyTest, NightRun
from reports.nights.report import UNKNOWN
from reports.read.history import History, history
from suites.base.listings import allocation
from suites.base.running import Worth
from systems import references

ROOT = Path(__file__).parents[2]
ONE_TEST = ("--", "--exclude", "WeakScaling|Validation|Bandwidth|Peak|Overlap|Baseline")
"""Leaves LaunchLatency, whose job takes seconds."""


def nightly(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As cron would: with hardly any environment."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return subprocess.run(
        [str(ROOT / "ci" / "nightly"), "--system", "local", "--dir", str(folder), *words],
        env=kept,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def candidate(name: str, worth: int, node_hours: float) -> NightlyTest:
    return NightlyTest(name, name, node_hours, "by its time limit", worth)


def names(found: list[NightlyTest]) -> str:
    return "".join(one.name for one in found)


def test_the_most_valuable_tests_fill_the_budget():
    every = [candidate("a", 1, 0.5), candidate("b", 7, 1.0), candidate("c", 5, 0.7), candidate("d", 5, 0.4)]
    assert names(select(every, 2.0)) == "bda"
    assert names(select(every, 0.1)) == ""


def test_without_earlier_runs_a_test_costs_its_nodes_for_its_time_limit():
    described = [
        {
            "display_name": "A %n=1",
            "hashcode": "1",
            "worth": 3,
            "cases": [
                {"partition": "long", "nodes": 2, "node_hours": 0.3, "skipped": ""},
                {"partition": "short", "nodes": 1, "node_hours": 0.1, "skipped": ""},
            ],
            "fixture_jobs": [{"unique_name": "text", "nodes": 1, "node_hours": 0.1}],
        }
    ]
    (one,) = nightly_tests(described, History("local", ()))
    assert (one.node_hours, one.by) == (pytest.approx(0.5), "by its time limit")
    assert one.minutes == pytest.approx(60 * (0.15 + 0.1 + 0.1)), "as long as they have their nodes"
    none = [{**case, "node_hours": 0.0, "skipped": "one node"} for case in described[0]["cases"]]
    assert nightly_tests([described[0] | {"cases": none}], History("local", ())) == [], "it takes no budget"


def test_a_budget_that_fits_no_test_is_told_with_the_smallest(tmp_path):
    old = tmp_path / "results" / "nights" / "local" / "latest.xml"
    old.parent.mkdir(parents=True)
    old.write_text("all is fine")  # which a pipeline would show as tonight's
    done = nightly(tmp_path, "--node-hours", "0.0001", *ONE_TEST)
    assert done.returncode == 2
    assert re.search("0.0001 .*LaunchLatency", done.stderr)
    assert not list(old.parent.iterdir())


def test_two_at_once_are_refused(tmp_path):
    lock = tmp_path / "results" / "nights" / "local.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        held.write("process 77 since yesterday")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        done = nightly(tmp_path)
    assert done.returncode == 2
    assert "process 77 since yesterday" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--time-limit", "soon"), "--time-limit "),
        (("--node-hours", "0"), "--node-hours "),
        (("--jobs", "0"), "--jobs "),
        (("--", "-n", "Peak"), "-n behind --"),
        (("--", "--tag=slow"), "--tag=slow behind --"),
        (("--", "-nPeak", "--na", "X"), "-nPeak, --na behind --"),
        (("--", "--list-detailed"), "--list-detailed behind --"),
        (("--system", "nowhere"), "'nowhere'"),
        (("--system", "frontier"), "measured on frontier"),
    ],
)
def test_bad_options_are_told_in_a_sentence(tmp_path, capsys, words, told):
    try:
        code = main(["--system", "local", "--dir", str(tmp_path), *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert told in capsys.readouterr().err


def test_a_file_system_without_locks_is_told_and_the_night_goes_on(tmp_path, capsys, monkeypatch):
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main(["--system", "local", "--dir", str(tmp_path), "--", "--exclude", "."]) == 2
    said = capsys.readouterr().err
    assert "local.lock" in said
    assert "(Function not implemented)" in said
    assert "exclude fewer" in said


@pytest.mark.slow
def test_a_night_runs_is_judged_and_reported(tmp_path):
    words = ["--jobs", "2", "--time-limit", "1h", *ONE_TEST, "-S", f"python={forked_python()}"]
    done = nightly(tmp_path, *words)
    assert done.returncode == 2, done.stdout + done.stderr  # there are no references
    assert "can't be judged" in done.stdout or "nothing could be judged" in done.stdout
    folder = tmp_path / "results" / "nights" / "local"
    rows = re.findall(r"^\| unknown\s*\|\s(\w+)\s.*?\s\|\s(\d)\s+\|", (folder / "latest.md").read_text(), re.MULTILINE)
    assert set(rows) == {("LaunchLatency", "2")}
    assert int(ElementTree.parse(folder / "latest.xml").getroot().get("skipped", "0")) == len(rows)
    assert len(list(folder.glob("20*.md"))) == 1
    assert (tmp_path / "site" / "index.html").exists()


def working_in(folder: Path) -> Iterator[Path]:
    """The processes whose folder is there."""
    for one in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # it has just ended
            if one.readlink().is_relative_to(folder):
                yield one


def test_a_night_that_runs_out_of_time_ends_its_jobs_and_could_not_be_judged(tmp_path, capfd, monkeypatch):
    class Hasty(subprocess.Popen[str]):
        """ReFrame, whose time is over once its job has begun a result. It may then end in peace."""

        is_over = False

        def wait(self, timeout: float | None = None) -> int:
            if self.is_over:
                return super().wait(LONG_S)
            self.is_over = True
            until(lambda: self.poll() is not None or [*tmp_path.glob("stage/**/result.json")])
            assert self.poll() is None
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)

    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Hasty, DEVNULL=subprocess.DEVNULL))
    long = ("--exclude", "WeakScaling|Validation|Bandwidth|Launch|Overlap", "-S", "Peak.time_budget_s=300")
    night = NightRun("n", "local", tmp_path, time.monotonic() + LONG_S, long)
    try:
        assert run(night, 2.0, 1).code == UNKNOWN
    except RunError as error:
        assert "left no results" in str(error)  # noqa: PT017
    assert "time limit was reached" in capfd.readouterr().err
    until(lambda: not [*working_in(tmp_path)])


def test_no_test_is_started_once_the_time_is_over(tmp_path):
    night = NightRun("n", "local", tmp_path, time.monotonic() + 0.5)
    tests = [candidate("a", 1, 0.1)]
    assert not night.run(tests)
    assert not night.run(tests)
    assert not (tmp_path / "results" / "reframe" / "results.db").exists()


@pytest.mark.slow
def test_reframe_alone_fails_what_is_far_off_its_reference_or_no_longer_measured(tmp_path, monkeypatch):
    words = ("-c", "suites/peak.py", "--system", "local", "-n", "LaunchLatency", "-P", "ranks=1", "-r")
    succeed(tmp_path, *words)
    (night,) = history(tmp_path / "results" / "reframe" / "results.db", "local").nights
    (job,) = night.jobs
    monkeypatch.setattr(references, "FOLDER", tmp_path / "references")
    for times, missing, told, other in (
        (0.1, "", "failed to meet reference", "reference: lost"),
        (10.0, "lost", "reference: lost", "failed to meet reference"),
    ):
        usual = {
            name: references.Reference(unit=unit, median=times * value, mad=0.01 * times * value, jobs=20, nights=20)
            for name, (value, unit) in [*job.figures.items(), *([(missing, (1.0, "s"))] if missing else [])]
        }
        when = night.began.isoformat()
        series = references.ReferenceSet(**job.key._asdict(), nights=20, first=when, last=when, figures=usual)
        references.keep("local", when, None, [series])
        again = reframe(tmp_path, *words, PAR4D_REFERENCES=str(references.FOLDER))
        assert again.code == 1
        assert told in again.out
        assert other not in again.out
    references.path_of("local").write_text("schema: other\n")
    spoilt = reframe(tmp_path, *words, PAR4D_REFERENCES=str(references.FOLDER))
    assert spoilt.code == 0
    assert "reference make --system local" in spoilt.out


def test_the_examples_of_schedules_are_what_they_say():
    gitlab = yaml.safe_load((ROOT / "ci" / "schedules" / "gitlab-ci.yml").read_text())
    assert [line.split() for line in gitlab["nightly"]["script"]] == [
        ["ci/nightly", "--system", "perlmutter", "--node-hours", "2"]
    ]
    assert gitlab["weekly"]["script"] == ["ci/weekly --minutes 350 --resume"]
    for name in ("crontab", "scrontab"):
        lines = (ROOT / "ci" / "schedules" / name).read_text().splitlines()
        night, week = [one for one in lines if one[:1].isdigit()]
        assert night.split()[:5] == ["0", "1", "*", "*", "*"]
        assert week.split()[:5] == ["0", "13", "*", "*", "0"]
        assert "/ci/nightly" in night
        assert "/ci/weekly" in week


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
    done = succeed(folder, *arguments, "--describe")
    return Night(json.loads(done.out[done.out.index("[\n") :]))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Night]:
    return cache(lambda name: described(tmp_path_factory.mktemp(name), *NIGHT, "--system", name))


WITHOUT_NIGHTS = {"system-iv", "vcluster-pairs"}
"""Systems whose nodes have one device, so that four of them have too few for a night: one study alone is for these."""


@pytest.fixture(params=sorted({*systems.names()} - WITHOUT_NIGHTS))
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
    """Every selection must contain these tests."""
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


def test_the_engine_accepts_every_job_of_a_night(tmp_path: Path) -> None:
    succeed(tmp_path, *NIGHT, "--system", "perlmutter", "--dry-run", PAR4D_ACCOUNT="abc123")
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


LOAD, COMPUTE, LINK = ("TwoNodes", "one node: n1"), ("Peak", "compute:"), ("Bandwidth", "the link:")


@pytest.mark.parametrize(
    ("blamed", "is_found"),
    [
        ([LOAD], True),
        ([LOAD, COMPUTE], True),
        ([COMPUTE], False),
        ([LOAD, LINK], False),
        ([("TwoNodes", "one node: n0")], False),
        ([], False),
    ],
)
def test_the_proof_is_content_only_where_the_culprit_is_named_and_nothing_else_blamed(blamed, is_found):
    raised = [(test, f"{culprit} computes longer") for test, culprit in blamed]
    assert FAULTS[-1].is_found(raised) == is_found


def test_the_proof_knows_how_busy_the_machine_is():
    before, most_s = processor_times(), 0.1
    assert wait_until_idle(most_s) > most_s
    assert sum(processor_times()) > sum(before)


def test_it_says_by_itself_what_it_takes(tmp_path: Path):
    words = [sys.executable, str(Path(__file__).with_name("prove_nights.py")), "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert "--quiet" in done.stdout
