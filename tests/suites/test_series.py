"""The series of all studies: what is in the file, and what a bad one is told."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import systems
from engine.errors import UsageError
from engine.models.catalogue import published
from suites import series

ROOT = Path(series.__file__).parents[1]
PUBLISHED = ROOT / "reports" / "published" / "weak_scaling.csv"
STUDIES = ["weak_scaling", "strong_scaling", "overlap_ablation", "overlap_grids"]


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
        for point in series.points("weak_scaling", name)
        if point.series.name == "axonn-sc24"
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


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", systems.names())
def test_every_system_has_points_of_every_study_with_names_of_their_own_and_models_that_exist(
    study: str, name: str
) -> None:
    points = series.points(study, name)
    assert points
    assert len({str(point) for point in points}) == len(points)
    assert {point.model for point in points} <= set(published())


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", systems.names())
def test_what_runs_every_night_fits_a_small_allocation(study: str, name: str) -> None:
    nightly = [point for point in series.points(study, name) if "nightly" in point.series.tags]
    assert all(point.devices <= 64 for point in nightly)


@pytest.mark.parametrize("name", ["perlmutter", "frontier", "alps", "local", "vcluster"])
def test_weak_scaling_runs_every_night(name: str) -> None:
    assert any("nightly" in point.series.tags for point in series.points("weak_scaling", name))


def test_a_system_named_nowhere_runs_the_series_of_any_other() -> None:
    devices = [point.devices for point in series.points("weak_scaling", "brandnew")]
    assert devices == [512, 1024, 2048, 4096, 8192, 64]


def test_a_small_cluster_runs_nothing_larger_than_its_eight_ranks() -> None:
    assert all(point.devices <= 8 for study in STUDIES for point in series.points(study, "vcluster"))


def test_strong_scaling_keeps_the_model_and_on_all_but_the_oldest_series_the_batch() -> None:
    for name in systems.names():
        lines: dict[tuple[str, str], list[series.Point]] = {}
        for point in series.points("strong_scaling", name):
            lines.setdefault((point.series.name, point.model), []).append(point)
        for (line, _), points in lines.items():
            first, second = points[:2]
            assert second.devices == 2 * first.devices
            assert second.sequences == first.sequences * (2 if line == "axonn-ipdps22" else 1)


def test_the_running_example_of_the_ablation_is_the_papers() -> None:
    (point,) = series.points("overlap_ablation", "perlmutter")
    tokens = point.sequences * published()[point.model].sequence
    assert (point.model, point.devices, point.grid, point.series.cache) == ("gpt-20b", 16, "2x2x4x1", 28)
    assert tokens == 32 * 1024


def test_the_series_of_small_models_double_their_work_with_their_ranks() -> None:
    def work(name: str) -> float:
        model = published()[name]
        h, s = model.hidden, model.sequence
        return model.layers * h * h * (1 + s / (6 * h) + model.vocabulary / (16 * model.layers * h))

    for name, sizes in (("local", [1, 2, 4]), ("vcluster", [2, 4, 8])):
        points = series.points("weak_scaling", name)
        assert [point.devices for point in points] == sizes
        for smaller, larger in pairwise(points):
            assert work(larger.model) / work(smaller.model) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("sequences: 0", r"weak_scaling\.0\.sequences.*greater than 0"),
        ("sequences: 8, cache: most", r"weak_scaling\.0\.cache"),
        ("sequences: 8, rounds: 0", r"weak_scaling\.0\.rounds.*greater than 0"),
        ("sequences: 8, time_limit: soon", r"weak_scaling\.0\.time_limit"),
        ("sequences: 8, overlap: all", r"weak_scaling\.0\.overlap.*not permitted"),
        ("sequences: {2: 8}", r"weak_scaling\.0.*sequences are given for \[2\] devices, but not for 4"),
    ],
)
def test_a_bad_file_is_told_the_key_in_one_line(tmp_path: Path, entry: str, told: str) -> None:
    file = tmp_path / "series.yaml"
    series_of_two = "systems: {a: {2: gpt-test, 4: gpt-test}}"
    file.write_text(f"weak_scaling: [{{name: a, source: b, precision: fp32, {entry}, {series_of_two}}}]")
    with pytest.raises(UsageError, match=rf"series\.yaml.*{told}") as refusal:
        series.read(file)
    assert "\n" not in str(refusal.value)
