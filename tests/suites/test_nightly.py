"""ci/nightly: what it selects, and a night of this machine from its shell."""

import errno
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import yaml
from forked_python import forked_python
from running import reframe
from waiting import LONG_S, until

from engine import processes
from engine.errors import RunError
from night.command import main
from night.procedure import nightly_tests, run, select
from night.session import NightlyTest, NightRun
from reports.nights.report import UNKNOWN
from reports.read.history import History, history
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
                {"partition": "long", "node_hours": 0.3, "skipped": ""},
                {"partition": "short", "node_hours": 0.1, "skipped": ""},
            ],
            "fixture_jobs": [{"unique_name": "text", "node_hours": 0.1}],
        }
    ]
    (one,) = nightly_tests(described, History("local", ()))
    assert (one.node_hours, one.by) == (pytest.approx(0.5), "by its time limit")
    none = [{**case, "node_hours": 0.0, "skipped": "one node"} for case in described[0]["cases"]]
    assert nightly_tests([described[0] | {"cases": none}], History("local", ())) == [], "it takes no budget"


def test_a_budget_that_fits_no_test_is_told_with_the_smallest(tmp_path):
    old = tmp_path / "results" / "nights" / "local" / "latest.xml"
    old.parent.mkdir(parents=True)
    old.write_text("all is fine")  # which a pipeline would show as tonight's
    done = nightly(tmp_path, "--node-hours", "0.0001", *ONE_TEST)
    assert done.returncode == 2
    assert "0.0001 node-hours have room for no nightly test of local: the smallest, LaunchLatency" in done.stderr
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
    assert "are being run by process 77 since yesterday: wait until that has ended" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--time-limit", "soon"), "--time-limit is a time such as"),
        (("--node-hours", "0"), "--node-hours is more than 0"),
        (("--jobs", "0"), "--jobs is 1 or more"),
        (("--", "-n", "Peak"), "-n behind -- would run other tests: leave some out by --exclude"),
        (("--", "--tag=slow"), "--tag=slow behind -- would run other tests"),
        (("--", "-nPeak", "--na", "X"), "-nPeak, --na behind -- would run other tests"),
        (("--", "--list-detailed"), "--list-detailed behind -- would run other tests"),
        (("--system", "nowhere"), "No system is called 'nowhere'"),
        (("--system", "frontier"), "frontier is measured on frontier, and this machine"),
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
    assert "local.lock can't be locked (Function not implemented), so nothing keeps a second ci/nightly out." in said
    assert "No nightly test of local is left: exclude fewer." in said


@pytest.mark.slow
def test_a_night_runs_is_judged_and_reported(tmp_path):
    words = ["--jobs", "2", "--time-limit", "1h", *ONE_TEST, "-S", f"python={forked_python()}"]
    done = nightly(tmp_path, *words)
    assert done.returncode == 2, done.stdout + done.stderr  # there are no references
    assert "can't be judged" in done.stdout or "nothing could be judged" in done.stdout
    folder = tmp_path / "results" / "nights" / "local"
    rows = re.findall(r"^\| unknown +\| (\w+) .*? \| (\d) +\| ", (folder / "latest.md").read_text(), re.MULTILINE)
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
        assert "The night has left no results" in str(error)  # noqa: PT017
    assert "The night's time limit was reached: what was still to be run was left out." in capfd.readouterr().err
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
    first = reframe(tmp_path, *words)
    assert first.code == 0, first.out
    (night,) = history(tmp_path / "results" / "reframe" / "results.db", "local").nights
    (job,) = night.jobs
    monkeypatch.setattr(references, "FOLDER", tmp_path / "references")
    for times, missing, told in (
        (10.0, "", ""),
        (0.1, "", "failed to meet reference"),
        (10.0, "lost", "reference: lost"),
    ):
        usual = {
            name: references.Reference(unit=unit, median=times * value, mad=0.01 * times * value, jobs=20, nights=20)
            for name, (value, unit) in [*job.figures.items(), *([(missing, (1.0, "s"))] if missing else [])]
        }
        when = night.began.isoformat()
        series = references.ReferenceSet(**job.key._asdict(), nights=20, first=when, last=when, figures=usual)
        references.keep("local", when, None, [series])
        again = reframe(tmp_path, *words, PAR4D_REFERENCES=str(references.FOLDER))
        assert again.code == bool(told), again.out
        assert told in again.out
    references.path_of("local").write_text("schema: other\n")
    spoilt = reframe(tmp_path, *words, PAR4D_REFERENCES=str(references.FOLDER))
    assert spoilt.code == 0
    assert "make it anew by `par4d reference make --system local`" in spoilt.out


def test_the_examples_of_schedules_are_what_they_say():
    gitlab = yaml.safe_load((ROOT / "ci" / "schedules" / "gitlab-ci.yml").read_text())
    assert gitlab["nightly"]["script"] == ["ci/nightly --system perlmutter --node-hours 2"]
    assert gitlab["weekly"]["script"] == ["ci/weekly --minutes 350 --resume"]
    for name in ("crontab", "scrontab"):
        lines = (ROOT / "ci" / "schedules" / name).read_text().splitlines()
        night, week = [one for one in lines if one[:1].isdigit()]
        assert night.split()[:5] == ["0", "1", "*", "*", "*"]
        assert week.split()[:5] == ["0", "13", "*", "*", "0"]
        assert "/ci/nightly" in night
        assert "/ci/weekly" in week
