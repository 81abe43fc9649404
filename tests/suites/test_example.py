"""ci/example: what it measures, that one failed entry loses no other, and that packing names no machine."""

import gzip
import json
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UsageError
from engine.files import write_text
from measured_example import command, measure, pack
from measured_example.entries import ROOT, Entry, read
from measured_example.scrub import NODE, USER, Names, scrub
from reports.read import compressed
from reports.read.history import CHOSEN, DATABASE, NIGHT, history
from reports.read.load import load
from reports.read.run_reports import sessions
from systems import references

MOST_MINUTES = 75
NAMES = Names(hosts=("gpu17.site.org", "gpu17"), users=("ada",))
STORED = Path(__file__).parents[1] / "reports" / "stored"


def entry(name: str, **fields: Any) -> Entry:
    return Entry.model_validate({"name": name, "minutes": 0.1, "suite": "peak"} | fields)


def report(*records: Any) -> dict[str, Any]:
    """A run report of ReFrame with a test case for each record."""
    info = {"version": "4.10.4", "data_version": "4.2", "hostname": "gpu17", "workdir": "/home/ada/par4d"}
    cases = [
        {"name": f"T{number}", "result": "pass", "record": one, "stagedir": "/home/ada/stage", "job_stdout": "x"}
        for number, one in enumerate(records)
    ]
    return {"session_info": info, "runs": [{"testcases": cases}]}


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORED / "train_4.json").read_text())
    found["provenance"] |= {"hosts": ["gpu17"], "environment": {"OMP_NUM_THREADS": "1", "PAR4D_TMP": "/scratch/ada"}}
    return found


def test_the_list_is_measured_within_its_minutes_and_each_suite_is_there() -> None:
    entries = read()
    assert sum(one.minutes for one in entries) <= MOST_MINUTES
    assert all((ROOT / "suites" / f"{one.suite}.py").exists() for one in entries if one.suite)
    assert all((ROOT / one.script).is_file() for one in entries if one.script)
    systems = [one.system for one in entries]
    assert systems == sorted(systems)  # local ones first
    assert {"local", "vcluster"} == {*systems}


def test_a_suite_is_one_command_of_reframe_and_commands_are_the_engines() -> None:
    suite = entry("a", only="x=1", parameters=("step=30,60",), settings=("jobs=2", "peers=plain"), repeat=3)
    asked = "--system local -n x=1 -P step=30,60 -S jobs=2 -S peers=plain --repeat 3 -r"
    assert suite.lines[0][3:] == tuple(asked.split())
    plans = entry("b", suite="", commands=(("plan", "--out", "a.json"), ("plan", "--out", "b.json")))
    assert [line[1:] for line in plans.lines] == [("-m", "engine", *words) for words in plans.commands]
    script = entry("c", suite="", script="tests/a.py", commands=(("--keep", "."),))
    assert [line[1:] for line in script.lines] == [(str(ROOT / "tests" / "a.py"), "--keep", ".")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- {name: a, suite: peak}", "minutes"),
        ("- {name: a, minutes: 1}", "suite"),
        ("- {name: a, minutes: 1, suite: peak, commands: [[plan]]}", "suite"),
        ("- {name: a, minutes: 1, suite: peak, wrong: 1}", "wrong"),
        ("- {name: a, minutes: 1, suite: peak}\n- {name: a, minutes: 1, suite: p2p}", "'a'"),
        ("- {name: a, minutes: 1, suite: ../peak}", "suite"),
    ],
)
def test_a_wrong_list_is_refused_by_what_is_wrong(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "entries.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=named):
        read(path)


def test_an_unknown_entry_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match="'no-such'"):
        command.choose(["no-such"], None)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Rank 0 on gpu17 waits", f"Rank 0 on {NODE} waits"),
        ("gpu17.site.org", NODE),
        ("gpu170", "gpu170"),
        ("/home/ada/par4d/results/a.json", "a.json"),
        ("no file /scratch/ada/x/ is there", "no file x is there"),
        ("ada", USER),
        ("https://github.com/ada-lovelace/engine", "https://github.com/ada-lovelace/engine"),
        ("GB/s and tokens/s", "GB/s and tokens/s"),
        ("/9j/4AAQ/SkZJ" * 100, "/9j/4AAQ/SkZJ" * 100),
    ],
)
def test_texts_lose_machines_users_and_folders_and_nothing_else(text: str, left: str) -> None:
    assert scrub({"a": [text]}, NAMES) == {"a": [left]}


def test_names_are_removed_from_keys_versions_and_variables() -> None:
    told = {
        "clocks_hz": {"gpu17": 2.0e9},
        "versions": {"kernel": "6.1.0-28-site.x86_64", "torch": "2.13.0+cpu"},
        "environment": {"OMP_NUM_THREADS": "1", "PAR4D_TMP": "/scratch/ada", "USER": "ada"},
    }
    assert scrub(told, NAMES) == {
        "clocks_hz": {NODE: 2.0e9},
        "versions": {"kernel": "6.1.0", "torch": "2.13.0+cpu"},
        "environment": {"OMP_NUM_THREADS": "1", "USER": USER},
    }


def test_packed_results_are_read_as_they_were_and_the_same_results_make_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "work" / pack.REPORTS
    folder.mkdir(parents=True)
    (folder / "run-report-0.json").write_text(json.dumps(report(stored())))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.json.gz").write_bytes(b"old")
    written = [pack.pack(tmp_path / "work", tmp_path / name, NAMES) for name in ("one", "two")]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run.json.gz"]
    first, second = (paths[0].read_bytes() for paths in written)
    assert first == second
    text = gzip.decompress(first).decode()
    assert [word for word in ("gpu17", "ada", "/home", "job_stdout") if word in text] == []
    loaded = load([tmp_path / "one"])
    assert [run.result.status for run in loaded.runs] == ["ok"]
    assert loaded.runs[0].result.provenance.hosts == (NODE,)
    assert compressed.written(written[0][0]).timestamp() == int((folder / "run-report-0.json").stat().st_mtime)


def test_nights_are_packed_with_what_is_read_of_them_and_their_references(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = report(stored())
    one["session_info"] |= {"time_start_unix": 1.8e9, NIGHT: "2026-11-30T010203", CHOSEN: "T0"}
    for case in one["runs"][0]["testcases"]:
        case |= {"system": "vcluster", "display_name": "T0", "perfvalues": {"vcluster:cpu:rate": [2.0, 0, 0, 0, "B/s"]}}
    source = tmp_path / "work" / DATABASE
    source.parent.mkdir(parents=True)
    with closing(sqlite3.connect(source)) as made:
        made.execute("CREATE TABLE sessions (uuid TEXT, json_blob TEXT)")
        made.execute("INSERT INTO sessions VALUES ('a', ?)", [json.dumps(one)])
        made.commit()
    reference = {"unit": "B/s", "median": 2.0, "mad": 0.1, "jobs": 20, "nights": 20}
    alike = {"partition": "cpu", "test": "T0", "point": "", "grid": "", "ranks": 4, "precision": "fp32", "options": ""}
    dates = {"nights": 20, "first": "2026-11-30T01:02:03+00:00", "last": "2026-11-30T02:02:03+00:00"}
    series = alike | dates | {"versions": {"PAR4D_TMP": ["/scratch/ada"]}, "figures": {"rate": reference}}
    known = {
        "schema": "par4d.references",
        "version": 2,
        "system": "vcluster",
        "made": "",
        "digest": "",
        "series": [series],
    }
    write_text(tmp_path / "work" / pack.REFERENCES / "vcluster.yaml", json.dumps(known))
    written = [pack.pack(tmp_path / "work", tmp_path / name, NAMES) for name in ("one", "two")]
    assert [[path.name for path in paths] for paths in written] == [["nights.db.gz", "vcluster.yaml"]] * 2
    assert written[0][0].read_bytes() == written[1][0].read_bytes()
    ((_, kept),) = sessions(written[0][0])
    assert [word for word in ("gpu17", "ada", "/home", "job_stdout") if word in json.dumps(kept)] == []
    (before,), (after,) = (history(path, "vcluster").nights for path in (source, written[0][0]))
    assert (after.name, after.began, after.chosen) == (before.name, before.began, before.chosen)
    (was,), (job,) = before.jobs, after.jobs
    assert (job.key, job.figures, job.parts, job.node_seconds) == (was.key, was.figures, was.parts, was.node_seconds)
    loaded = load([tmp_path / "one"])
    assert ([one.system for one in loaded.histories], loaded.runs, loaded.skipped) == (["vcluster"], (), ())
    monkeypatch.setattr(references, "FOLDER", tmp_path / "one")
    (made,) = references.references("vcluster").series
    assert (made.figures["rate"].median, made.versions) == (2.0, {})


def test_a_packed_database_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    cut = tmp_path / "nights.db.gz"
    cut.write_bytes(gzip.compress(b"0" * 1000)[:-9])
    assert [one.source for one in load([tmp_path]).skipped] == [str(cut)]


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the entries that were run, in place of running them: one called bad fails, one called slow takes too
    long.
    """
    ran: list[str] = []

    def carry_out(words: Sequence[str], output: object, *, folder: Path, **how: object) -> tuple[int | None, float]:
        ran.append(folder.name)
        write_text(folder / pack.REPORTS / "run-report-0.json", json.dumps(report(stored())))
        return {"bad": 1, "slow": None}.get(folder.name, 0), 0.0

    monkeypatch.setattr(measure.processes, "carry_out", carry_out)
    monkeypatch.setattr(measure, "WORK", tmp_path / "work")
    monkeypatch.setattr(command, "PACKED", tmp_path / "packed")
    monkeypatch.setattr(measure, "commit", lambda: "c0ffee")
    return ran


def run(*entries: Entry, again: bool = False, seconds: float = 60) -> int:
    return command.run(entries, again, time.monotonic() + seconds)


def packed(tmp_path: Path) -> set[str]:
    return {path.parent.name for path in (tmp_path / "packed").glob("*/run.json.gz")}


def test_a_failed_entry_keeps_what_was_packed_before_and_loses_no_other(carried: list[str], tmp_path: Path) -> None:
    before = tmp_path / "packed" / "bad" / "run.json.gz"
    before.parent.mkdir(parents=True)
    before.write_bytes(b"before")
    assert run(entry("a"), entry("bad"), entry("slow"), entry("z")) == command.FAILED
    assert carried == ["a", "bad", "slow", "z"]
    assert packed(tmp_path) == {"a", "bad", "z"}
    assert before.read_bytes() == b"before"


def test_what_is_done_on_this_commit_is_not_measured_again(carried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    a, bad = entry("a"), entry("bad")
    run(a, bad)
    assert run(a, bad) == command.FAILED
    assert carried == ["a", "bad", "bad"]
    assert run(a, again=True) == command.FINE
    assert run(entry("a", repeat=2)) == command.FINE  # it is another one
    monkeypatch.setattr(measure, "commit", lambda: "another")
    assert run(entry("a", repeat=2)) == command.FINE
    assert carried[3:] == ["a"] * 3


def test_an_interrupted_run_packs_what_had_ended_well(
    carried: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_a_kind = measure.measure

    def interrupted(one: Entry, until: float) -> str:
        if one.name == "z":
            raise SystemExit(2)
        return of_a_kind(one, until)

    monkeypatch.setattr(measure, "measure", interrupted)
    with pytest.raises(SystemExit):
        run(entry("a"), entry("z"))
    assert packed(tmp_path) == {"a"}


def test_packed_results_alone_are_no_change_of_the_tree(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, timeout=60, capture_output=True)

    result, code = tmp_path / measure.PACKED / "a" / "run.json.gz", tmp_path / "code.py"
    result.parent.mkdir(parents=True)
    for path in (result, code):
        path.write_text("1")
    git("init", "--quiet")
    git("add", "--all")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "a")
    clean = measure.commit(tmp_path)
    result.write_text("2")
    assert measure.commit(tmp_path) == clean
    code.write_text("2")
    assert measure.commit(tmp_path) == f"{clean}, modified"


def test_what_cannot_run_here_is_told_by_the_exit_code(
    carried: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(measure.os, "geteuid", lambda: 1000)
    assert run(entry("peer", peer="deepspeed"), entry("cluster", system="vcluster"), entry("a")) == command.UNKNOWN
    assert run(entry("b"), seconds=-1) == command.UNKNOWN
    assert carried == ["a"]


@pytest.mark.parametrize(
    ("works", "asked", "ran"),
    [
        ({"status": False, "up": True}, ["status", "up", "down"], ["a", "b", "c"]),
        ({"status": True}, ["status"], ["a", "b", "c"]),
        ({"status": False, "up": False}, ["status", "up", "down"], ["a"]),
    ],
)
def test_the_cluster_is_made_once_and_ended_unless_it_was_up(
    works: dict[str, bool], asked: list[str], ran: list[str], carried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []

    def carry_out(word: str) -> bool:
        words.append(word)
        return works.get(word, True)

    monkeypatch.setattr(measure.os, "geteuid", lambda: 0)
    monkeypatch.setattr(measure, "carry_out_cluster", carry_out)
    code = run(entry("a"), entry("b", system="vcluster"), entry("c", system="vcluster"))
    assert (words, carried) == (asked, ran)
    assert code == (command.FINE if len(ran) > 1 else command.UNKNOWN)
