"""The weak-scaling series: what is in the file, and what a bad one is told."""

import csv
from pathlib import Path

import pytest
import yaml

import systems
from engine.errors import UsageError
from engine.models import published
from suites import series

ROOT = Path(series.__file__).parents[1]
PUBLISHED = ROOT / "reports" / "published" / "weak_scaling.csv"


def table_3() -> dict[tuple[str, int, str], float]:
    """(system, devices, model) -> sustained flop/s as published."""
    rows = [row for row in csv.DictReader(PUBLISHED.open()) if row["source"] == "axonn-sc24 Table III"]
    return {
        (row["system"].lower(), int(row["devices"]), row["model"].lower()): float(row["value"]) * 1e15
        for row in rows
        if row["metric"] == "sustained"
    }


def test_the_series_of_the_paper_is_table_3_with_nothing_left_out() -> None:
    ours = {
        (name, point.devices, point.model)
        for name in systems.names()
        for point in series.points(name)
        if point.series == "axonn-sc24"
    }
    assert ours == set(table_3())


def test_the_references_are_the_published_rates_and_every_published_rate_is_one() -> None:
    references = yaml.safe_load((ROOT / "suites" / "references.yaml").read_text())["WeakScaling"]
    assert references.pop("$index") == ["$system", "series", "num_tasks"]
    ours = {
        (system, devices): figures["hardware_flops_per_s"][0]
        for system, by_series in references.items()
        for devices, figures in by_series["axonn-sc24"].items()
    }
    assert ours == {(system, devices): pytest.approx(rate) for (system, devices, _), rate in table_3().items()}


@pytest.mark.parametrize("name", systems.names())
def test_every_system_has_points_whose_models_exist(name: str) -> None:
    points = series.points(name)
    assert points
    assert {point.model for point in points} <= set(published())


@pytest.mark.parametrize("name", ["perlmutter", "frontier", "alps", "local"])
def test_what_runs_every_night_fits_a_small_allocation(name: str) -> None:
    nightly = [point for point in series.points(name) if "nightly" in point.tags]
    assert nightly
    assert all(point.devices <= 64 for point in nightly)


def test_a_system_named_nowhere_runs_the_series_of_any_other() -> None:
    assert [point.devices for point in series.points("brandnew")] == [512, 1024, 2048, 4096, 8192, 64]


def test_the_local_series_doubles_its_work_with_its_ranks() -> None:
    def work(name: str) -> float:
        model = published()[name]
        h, s = model.hidden, model.sequence
        return model.layers * h * h * (1 + s / (6 * h) + model.vocabulary / (16 * model.layers * h))

    one, two, four = series.points("local")
    assert (one.devices, two.devices, four.devices) == (1, 2, 4)
    assert work(two.model) / work(one.model) == pytest.approx(2, rel=0.05)
    assert work(four.model) / work(two.model) == pytest.approx(2, rel=0.05)


def test_a_bad_file_is_told_the_key(tmp_path: Path) -> None:
    file = tmp_path / "series.yaml"
    file.write_text("- {name: a, source: b, sequences: 0, precision: fp32, systems: {}}")
    with pytest.raises(UsageError, match=r"series\.yaml.*0\.sequences.*greater than 0"):
        series.read(file)
