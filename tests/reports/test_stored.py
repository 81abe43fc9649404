"""Results of earlier versions are read under today's keys, with the numbers that they were written with."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from engine.result.judges import peers as peer_judge
from engine.result.schema import peers, read, write
from engine.result.schema.contest import GridSide, OverlapSide, ScheduleSide
from reports.site import build

STORED = Path(__file__).parent / "stored"
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


@pytest.mark.parametrize("name", [*CONTESTS, "train_1"])
def test_keys_of_histories_stay(name: str) -> None:
    result, old = read(STORED / f"{name}.json"), raw(name)
    for key in ("kind", "labels", "config", "ranks", "grid", "version", "status"):
        assert getattr(result, key) == old[key]
    assert result.provenance.start == old["provenance"]["start"]


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
