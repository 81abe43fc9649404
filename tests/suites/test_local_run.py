"""Real runs on this machine, small: what is measured, what is kept, and what makes a test fail."""

import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from counter_files import rapl
from running import ONCE, QUICK, Run, figures, project, reframe, short, succeed

from engine.result.schema import parse
from reports.cli import main as build_report
from systems.schedulers import STANDSTILL_S

pytestmark = pytest.mark.slow

WEAK_SCALING = ["-c", "suites/weak_scaling.py", "--system", "local", *QUICK]
STRONG_SCALING = ["-c", "suites/strong_scaling.py"]
VALIDATION = ["-c", "suites/validation.py", "-S", "Validation.grid=1x1x2x1"]
ODD = "it's a Prüfung & $5"
THREE = ["-S", "iterations=3"]
MEASURED = {
    *("time_per_iteration", "faster_half", "hardware_flops_per_s", "percent_of_empirical_peak", "compute"),
    *("step_by_bound", "canary", "tokens_per_joule_processor", "tokens_per_joule_memory"),
    *("time_per_iteration_none", "speed_up_none"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Weak scaling on one and two ranks, and validation on two, three iterations each, with their fixtures, all of it
    in folders whose names a shell would read otherwise. Only four ranks have a target, which no machine reaches.
    """
    both = [*WEAK_SCALING, *VALIDATION, *THREE, "-n", "local-[12]-|^Validation", "-S", "WeakScaling.canary=yes"]
    both += ["-S", "WeakScaling.also_overlap=none"]
    counters = tmp_path_factory.mktemp("sys")
    root = short(tmp_path_factory.mktemp(ODD), peaks=["fp32", "fp64"])
    aim(root, ranks=4)
    with used_up(counters):
        return reframe(tmp_path_factory.mktemp(ODD), *both, root=root, PAR4D_SYSFS=str(counters))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Weak scaling on one rank, which is to be faster than any machine; validation with another learning
    rate than its reference has; strong scaling that diverges; and a sweep of products that can't be started.
    """
    root = short(tmp_path_factory.mktemp("root"), peaks=["fp32", "fp64"])
    aim(root, ranks=1)
    python = root / "python"
    python.write_text('#!/bin/sh\necho "no room" >&2\nexit 1\n')
    python.chmod(0o755)
    suites = [*WEAK_SCALING, *VALIDATION, *STRONG_SCALING, "-c", "suites/peak.py"]
    faults = ["-S", "Validation.learning_rate=0.00300001", "-S", "StrongScaling.learning_rate=1e30"]
    faults += ["-S", f"Peak.python={python}", "-S", "Peak.time_budget_s=1"]
    names = "WeakScaling.*local-1-|^Validation|StrongScaling.*local-1-|Peak%ranks=1%dtype=fp32$"
    return reframe(tmp_path_factory.mktemp("wrong"), *suites, *THREE, *ONCE, *faults, "-n", names, root=root)


def aim(root: Path, *, ranks: int) -> None:
    """Make it a target of weak scaling on so many ranks to be faster than any machine, the only target there is."""
    row = {"system": "local", "devices": ranks, "hardware_flops_per_s": 1e15}
    metrics = {"hardware_flops_per_s": "Pflop/s"}
    block = {"where": "abstract", "study": "weak_scaling", "metrics": metrics, "rows": [row]}
    (root / "engine" / "published" / "local.yaml").write_text(yaml.safe_dump([block]))


@contextmanager
def used_up(root: Path) -> Iterator[None]:
    """Counters of energy below root that go up all the while: this machine need not have any."""
    rapl(root)
    counters = [*root.rglob("energy_uj")]
    ended = threading.Event()

    def go_up() -> None:
        while not ended.wait(0.02):
            for file in counters:
                new = file.with_name("new")
                new.write_text(f"{int(file.read_text()) + 1_000_000}\n")
                new.replace(file)

    thread = threading.Thread(target=go_up)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def weak_scaling(run: Run) -> list[dict[str, Any]]:
    return [case for case in run.cases() if case["name"].startswith("WeakScaling")]


def recorded(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case[name] for case in cases for name in ("record", "second_record") if case.get(name)]


def by_name(run: Run, name: str) -> dict[str, Any]:
    (case,) = [case for case in run.cases() if case["name"].startswith(name)]
    return case


def test_every_point_is_measured_on_real_text(run: Run) -> None:
    assert run.code == 0, run.out
    names = sorted(case["name"].split()[0] for case in run.cases())
    assert names == ["Corpus", "SerialCurve", "Text", "Validation", "WeakScaling", "WeakScaling"]
    for case in weak_scaling(run):
        measured = figures(case)
        alone = case["record"]["ranks"] == 1
        hidden, exposed = measured.pop("communication_hidden", None), measured.pop("exposed_communication")
        assert set(measured) == MEASURED
        assert all(value > 0 for value in measured.values())
        assert (exposed == pytest.approx(0)) == (hidden is None) == alone
        assert measured["compute"] + exposed == pytest.approx(measured["time_per_iteration"])
        twice = measured["time_per_iteration"] / measured["time_per_iteration_none"]
        assert measured["speed_up_none"] == pytest.approx(twice)
        assert case["record"]["config"]["data"].endswith("corpus")
        assert 4 * case["record"]["config"]["timeout_s"] <= STANDSTILL_S
        transport = case["record"]["transport"] or {"networks": []}
        assert [(network["name"], network["ranks"]) for network in transport["networks"]] == [("tcp", 2)] * (not alone)


def test_validation_passes_where_the_curves_agree(run: Run) -> None:
    variants = [case["record"]["labels"].get("variant") for case in run.cases() if case.get("record")]
    assert sorted(map(str, variants)) == ["4d", "None", "None", "serial"]
    assert figures(by_name(run, "Validation"))["max_relative_difference"] < 1e-12


def test_the_report_shows_what_was_measured(run: Run, tmp_path: Path) -> None:
    assert build_report(["build", "--results", str(run.folder / "results"), "--out", str(tmp_path)]) == 0
    assert {"index.html", "weak_scaling.html", "validation.html"} <= {page.name for page in tmp_path.glob("*.html")}
    page = (tmp_path / "weak_scaling.html").read_text()
    assert all(name in page for name in ("gpt-local-1", "gpt-local-2"))


def test_each_result_is_whole_in_the_run_report_in_the_database_and_in_the_output_folder(run: Run) -> None:
    kept = [json.loads(file.read_text()) for file in run.folder.glob("output/**/result.json")]
    records = recorded(run.cases())
    assert len(records) == 6, "each point of weak scaling has two"
    assert sorted(map(str, kept)) == sorted(map(str, records))
    for record in records:
        assert parse(record, "record").status == "ok"
        assert record["labels"]["system"] == "local"
    with closing(sqlite3.connect(run.folder / "results/reframe/results.db")) as database:
        (blob,) = database.execute("SELECT json_blob FROM sessions").fetchone()
    assert recorded(json.loads(blob)["runs"][0]["testcases"]) == records


def test_nothing_is_written_outside_the_folder(run: Run) -> None:
    assert {path.name for path in run.folder.iterdir()} == {"suites", "stage", "output", "results", "reframe.log"}


def test_more_ranks_than_cores_are_run_on_demand_only(tmp_path: Path) -> None:
    four = [*WEAK_SCALING, "--dry-run", "-n", "local-4-"]
    demanded = reframe(tmp_path / "demanded", *four, "-S", "oversubscribe=yes")
    assert set(demanded.scripts) == {4}
    assert " -m torch.distributed.run --standalone --nproc-per-node=4 " in demanded.scripts[4]
    if (os.cpu_count() or 1) < 4:
        skipped = reframe(tmp_path / "skipped", *four)
        assert "4 ranks on" in skipped.out
        assert not skipped.scripts


def test_a_result_below_its_target_fails_and_one_without_target_does_not(wrong: Run, run: Run) -> None:
    assert wrong.code == 1
    assert "undecided whether the target" in wrong.out
    assert [case["result"] for case in weak_scaling(wrong)] == ["fail"]
    assert [case["result"] for case in weak_scaling(run)] == ["pass", "pass"], "the target of four ranks is not theirs"


def test_curves_that_differ_fail(wrong: Run) -> None:
    assert by_name(wrong, "Validation")["result"] == "fail"
    assert re.search("1x1x2x1 .* differ by", wrong.out)


def test_a_run_that_fails_says_the_engines_own_reason_and_keeps_its_record(wrong: Run) -> None:
    record = by_name(wrong, "StrongScaling")["record"]
    assert isinstance(record, dict)
    assert record["status"] == "failed"
    assert f"the run failed: {record['reason']}" in wrong.out


def test_a_run_that_never_started_says_its_last_words(wrong: Run) -> None:
    assert by_name(wrong, "Peak")["result"] == "fail"
    assert re.search("no result.json; .*no room", wrong.out)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the run would work on a machine with a GPU")
def test_a_missing_corpus_and_a_device_that_is_not_there_are_told_in_the_engines_own_sentences(tmp_path: Path) -> None:
    lacking = ["-S", "StrongScaling.data=/nowhere", "-S", "WeakScaling.device=cuda"]
    done = reframe(tmp_path, *WEAK_SCALING, *STRONG_SCALING, *lacking, "-n", "local-1-")
    assert done.code == 1
    assert "Reason: refused: " in done.out
    assert "/nowhere" in str(by_name(done, "StrongScaling")["fail_reason"])
    assert re.search("failed: --device cuda.* GPU", done.out)


def test_adding_a_machine_is_adding_one_file(tmp_path: Path) -> None:
    copy = project(tmp_path)
    frontier = (copy / "systems" / "frontier.yaml").read_text()
    new = (
        frontier.replace("frontier", "brandnew")
        .replace("  empirical_peak_flops:", "  # unknown:")
        .replace('    bf16: {value: 125.0e+12, source: "axonn-sc24 VI-C, rocBLAS, 32768 x 32768"}\n', "")
    )
    (copy / "systems" / "brandnew.yaml").write_text(new)
    done = succeed(tmp_path / "a", "-c", "suites/weak_scaling.py", "--system", "brandnew", root=copy)
    assert set(done.scripts) == {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192}
    assert all("--measure-peak" in script for script in done.scripts.values())
