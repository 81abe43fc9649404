"""Figures that no machine can have are in no table, and the index page names their files; others stay."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sample_contests import contests
from sample_devices import memory
from sample_pipelines import pipeline
from sample_predictions import plan
from sample_results import gemm, train

from engine.schema import Document
from reports.frames.frame import frames
from reports.read.load import load
from reports.read.peaks import facts, with_peaks
from reports.site import build

FRONTIER = facts("frontier", "bf16").advertised
SAMPLES: Mapping[str, Callable[[], Document]] = {
    "train": lambda: train(system="frontier"),
    "gemm": lambda: gemm(system="frontier", dtype="bf16", best=150e12),
    "memory": lambda: memory(system="frontier"),
    "pipeline": lambda: pipeline()[0],
    "contests": contests,
    "plan": plan,
}


def _put(data: Any, path: str, value: object) -> None:
    *inner, last = (int(key) if key.isdecimal() else key for key in path.split("."))
    for key in inner:
        data = data[key]
    data[last] = value


def _saved(folder: Path, sample: str, changes: Mapping[str, object]) -> Path:
    """A good result, and the same with these changes."""
    data = json.loads(SAMPLES[sample]().to_json())
    (folder / "good.json").write_text(json.dumps(data))
    for path, value in changes.items():
        _put(data, path, value)
    if "provenance" in data:
        data["provenance"]["start"] = "2026-03-06T01:00:00+00:00"
    bad = folder / "changed.json"
    bad.write_text(json.dumps(data))
    return bad


@pytest.mark.parametrize(
    ("sample", "changes", "says"),
    [
        ("train", {"grid": "2x2"}, "at grid: "),
        ("train", {"grid": "4x4x4x4"}, "4x4x4x4 is of 256 ranks"),
        ("train", {"grid": "0x1x1x1"}, "at grid: "),
        ("train", {"summary.time_per_iteration_s": 0.0}, "time_per_iteration_s is 0"),
        ("train", {"summary.median_time_s": -1.0}, "median_time_s is -1"),
        ("train", {"iterations.3.time_s": -1e-3}, "time_s is -0.001"),
        ("train", {"iterations.3.time_s": float("nan")}, "time_s is not a number"),
        ("train", {"summary.hardware_flops_per_s": float("inf")}, "hardware_flops_per_s is infinite"),
        ("train", {"summary.hardware_flops_per_s": 1e18}, "% of the advertised peak"),
        ("train", {"summary.hfu": 1.01}, "HFU is 101 %"),
        ("train", {"summary.mfu": -0.1}, "MFU is -10 %"),
        ("gemm", {"gemm.2.flops_per_s": 192e12}, "% of the advertised peak"),
        ("gemm", {"best_flops_per_s": 192e12}, "its best rate of a device is"),
        ("memory", {"stream.kernels.1.best_bytes_per_s": 1e15}, "bandwidth of scale"),
        ("pipeline", {"contest.sides.0.rounds_s.0.0": 0.0}, "rounds_s is 0"),
        ("contests", {"comparisons.0.ours_median_s": 0.0}, "ours_median_s is 0"),
        ("contests", {"comparisons.0.grid": "2x2"}, "at comparisons.0.grid: "),
        ("contests", {"comparisons.0.ranks": 3}, "that there were 3"),
        ("contests", {"peaks.advertised": 1e3}, "% of the advertised peak"),
        ("plan", {"rows.0.time_s": -1.0}, "time_s is -1"),
        ("plan", {"rows.0.hfu": 1.5}, "HFU is 150 %"),
        ("plan", {"rows.0.grid": "7x1x1x1"}, "7x1x1x1 is of 7 ranks"),
    ],
    ids=str,
)
def test_what_can_not_be_is_left_out_and_named(
    sample: str, changes: Mapping[str, object], says: str, tmp_path: Path
) -> None:
    assert FRONTIER is not None
    assert FRONTIER.value == 191.5e12
    bad = _saved(tmp_path, sample, changes)
    loaded = load([tmp_path])
    assert len(loaded.runs) + len(loaded.contests) + len(loaded.plans) == 1, "the good one stays"
    assert [(one.source, says in one.reason) for one in loaded.skipped] == [(str(bad), True)], loaded.skipped


def test_the_report_is_built_beside_it_and_names_the_file(tmp_path: Path) -> None:
    bad = _saved(tmp_path, "train", {"grid": "2x2"})
    page, loaded = build([tmp_path], tmp_path / "site")
    assert len(loaded.runs) == 1
    assert bad.name in page.read_text()


def test_a_rate_above_an_empirical_peak_is_shown_and_marked(tmp_path: Path) -> None:
    _saved(tmp_path, "train", {"summary.empirical_peak_flops_per_device": 1e12, "summary.of_empirical": None})
    loaded = load([tmp_path])
    assert not loaded.skipped
    assert (with_peaks(frames(loaded.runs).runs)["of_empirical"] > 1).any()
    build([tmp_path], tmp_path / "site")
    assert " %, above" in (tmp_path / "site" / "weak_scaling.html").read_text()
