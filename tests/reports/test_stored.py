"""Results, nights and references of earlier versions are read under today's keys, with the numbers of their time."""

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engine.result.judges import peers as peer_judge
from engine.result.schema import peers, read, write
from engine.result.schema.contest import GridSide, OverlapSide, ScheduleSide
from engine.training_record import TrainingOptions
from reports.nights.reference import make
from reports.nights.report import night_reports
from reports.read.history import history
from reports.site import build
from systems import references
from systems.references import key_of

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parent / "stored"
NIGHTS = Path(__file__).parent / "stored_nights"
"""Database of 24 nights, of which four are slow, references of the others, and verdicts of the last four, all written
by an earlier version; launch lines are those of its suites.
"""
CONTESTS = {
    "ablation_3": {
        "none": (1.8748364453700437, None),
        "ors": (1.666947198915696, 0.8895781196766207),
        "ors,oag": (1.2319525709228143, 0.6571257462576132),
    },
    "pipeline_5": {"1f1b": (0.3333371109689294, None), "zero-bubble": (0.29777403170762173, 0.8933611275889914)},
    "grids_5": {"1x1x2x1,4": (2.25, None), "1x1x1x1p2,2,zero-bubble": (1.625, 0.725)},
}
CONTESTS["ablation_5"] = CONTESTS["ablation_3"]


def raw(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((STORED / f"{name}.json").read_text())
    return loaded


@pytest.mark.parametrize("name", CONTESTS)
def test_sides_keep_their_names_times_and_ratios(name: str, tmp_path: Path) -> None:
    result = read(STORED / f"{name}.json")
    assert result.contest is not None
    assert result.contest.base == next(iter(CONTESTS[name]))
    found = {
        side.name: (side.time_per_iteration_s, side.over_base and side.over_base.ratio) for side in result.contest.sides
    }
    assert found == CONTESTS[name]
    write(result, tmp_path / "again.json")
    assert read(tmp_path / "again.json") == result


@pytest.mark.parametrize("name", [*CONTESTS, "train_1", "train_2", "train_4"])
def test_keys_of_histories_stay(name: str) -> None:
    result, old = read(STORED / f"{name}.json"), raw(name)
    for key in ("kind", "labels", "config", "ranks", "grid", "version", "status"):
        assert getattr(result, key) == old[key]
    assert result.provenance.start == old["provenance"]["start"]
    if summary := old.get("summary"):
        assert result.summary is not None
        assert {name: value for name, value in result.summary if name in summary} == summary
        assert [(step.time_s, step.loss) for step in result.iterations] == [
            (step["time_s"], step["loss"]) for step in old["iterations"]
        ]


def test_extras_of_each_kind_are_read() -> None:
    *_, overlap = read(STORED / "ablation_5.json").sides(OverlapSide)
    assert (overlap.prefetch_bytes, overlap.share_of_greatest_gain) == (1770000, 0.9604560941140896)
    schedules = read(STORED / "pipeline_5.json").sides(ScheduleSide)
    assert [(side.idle_share, side.auto, len(side.stages)) for side in schedules] == [
        (0.1391106303454857, False, 2),
        (0.06232459510625002, True, 2),
    ]
    grid, piped = read(STORED / "grids_5.json").sides(GridSide)
    assert (grid.exposed_s, piped.predicted_s, piped.schedule) == ({"z": 1.0}, 1.25, "zero-bubble")
    assert not read(STORED / "grids_5.json").sides(OverlapSide)


@pytest.mark.parametrize("version", [1, 4])
def test_contests_with_peers_keep_their_ratios(version: int) -> None:
    old = raw(f"peers_{version}")
    (found,) = peers.parse(old, "stored").comparisons
    (before,) = old["comparisons"]
    assert (found.ratio, found.ours_median_s) == (before["ratio"], before["ours_median_s"])
    assert peer_judge.paired(found.jobs).ratio == pytest.approx(
        1.012664799307539 if version == 4 else found.ratio, rel=1e-2
    )


def test_pages_have_the_stored_numbers(tmp_path: Path) -> None:
    build([STORED], tmp_path)
    with next(tmp_path.rglob("*-variants.csv")).open() as file:
        rows = {row["overlap"]: float(row["time_s"]) for row in csv.DictReader(file)}
    assert rows == pytest.approx({name: time_s for name, (time_s, _) in CONTESTS["ablation_5"].items()})
    with next(tmp_path.rglob("*-idle.csv")).open() as file:
        ratios = {row["schedule"]: row["ratio"] for row in csv.DictReader(file)}
    assert float(ratios["zero-bubble"]) == pytest.approx(0.8933611275889914)


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack the stored database beside its references."""
    monkeypatch.setattr(references, "FOLDER", tmp_path)
    (tmp_path / "frontier.yaml").write_bytes((NIGHTS / "frontier.yaml").read_bytes())
    (tmp_path / "nights.db").write_bytes(gzip.decompress((NIGHTS / "nights.db.gz").read_bytes()))
    return tmp_path / "nights.db"


def test_a_stored_night_is_judged_by_its_references_as_it_was(nights: Path) -> None:
    reports = night_reports(history(nights, "frontier"), references.references("frontier"), last=4)
    found = [(report.night.name, verdict) for report in reports for verdict in report.verdicts]
    stored = json.loads((NIGHTS / "verdicts.json").read_text())
    verdicts = {(name, *one.key, one.figure): one for name, one in found}
    assert verdicts.keys() == {tuple(row[:9]) for row in stored}
    for *key, _, _, value, usual, change, _, _ in stored:
        one = verdicts[tuple(key)]
        assert one.value == pytest.approx(value, rel=1e-9)
        assert [one.usual, 1 + one.change] == pytest.approx([usual, 1 + change], rel=0.02), "by another detector"


def test_references_made_anew_of_stored_nights_have_the_stored_keys_and_numbers(nights: Path) -> None:
    stored = references.references("frontier")
    assert stored is not None
    found = history(nights, "frontier")
    series = make(replace(found, nights=found.nights[:20]))
    assert {key: made.figures for key, made in series.items()} == {one.key: one.figures for one in stored.series}


def test_todays_launch_line_of_a_stored_test_has_its_key_s_words(nights: Path, tmp_path: Path) -> None:
    (stored,) = {job.key for job in history(nights, "frontier").jobs if job.key.test == "WeakScaling"}
    (tmp_path / "suites").symlink_to(ROOT / "suites")
    options = "-c suites/weak_scaling.py -t nightly --system frontier --dry-run --nocolor"
    subprocess.run(
        [sys.executable, "-m", "suites.launcher", *options.split()],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=True,
    )
    (script,) = tmp_path.glob("stage/**/WeakScaling_*/rfm_job.sh")
    (line,) = [line for line in script.read_text().splitlines() if " -m engine train " in line]
    launched = f"-m engine{line.partition(' -m engine')[2]}".split()
    assert key_of(partition="", display_name="", ranks=1, words=launched, record={}).options == stored.options


def test_defaults_are_no_words_of_a_launch_line_and_so_of_no_key() -> None:
    assert TrainingOptions().words() == []
    for option, word in (("checkpoint_activations", True), ("checkpoint_every", 2), ("precision", "bf16")):
        words = TrainingOptions(**{option: word}).words()
        assert words == [f"--{option.replace('_', '-')}", *([] if word is True else [str(word)])]
    assert {option.name for option in fields(TrainingOptions)} >= {"offload", "reduce_dtype"}
