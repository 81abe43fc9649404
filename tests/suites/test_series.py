"""The series of all studies: what is in the file, and what a bad one is told."""

from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import systems
from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import check_grid
from engine.models.catalogue import lookup, published
from engine.models.flops import model_flops
from engine.planning.rank import choose_grid
from engine.published import Number, select
from engine.simulator.bandwidth import Bandwidths
from engine.training_record import Training
from suites.base import figures, series

ROOT = Path(series.__file__).parents[2]
STUDIES = [
    "weak_scaling",
    "strong_scaling",
    "overlap_ablation",
    "overlap_grids",
    "model_validation",
    "grids",
    "peers",
    "single_device",
    "pipeline",
    "optimisations",
]


def table_3() -> list[Number]:
    """Sustained flop/s as published."""
    return select(paper="axonn-sc24", where="Table III", metric="hardware_flops_per_s")


def test_the_series_of_the_paper_is_table_3_with_nothing_left_out() -> None:
    named = {name for one in series.read()["weak_scaling"] for name in one.systems} & set(systems.names())
    ours = {
        (name, point.devices, point.model)
        for name in named
        for point in series.points("weak_scaling", name)
        if point.series.name == "axonn-sc24"
    }
    assert ours == {(one.system.lower(), one.devices, one.model.lower()) for one in table_3()}


def test_every_published_rate_is_a_target_of_four_fifths() -> None:
    assert len(table_3()) == 15
    for one in table_3():
        assert figures.target(one.system.lower(), "axonn-sc24", one.devices) is one
        assert one.tolerance == 0.2
    assert figures.target("frontier", "axonn-sc24", 64) is None
    assert figures.target("local", "local", 2) is None


def steps(*times_s: float) -> dict[str, Any]:
    """A result whose counted steps took so long, of 1e15 flop each; a slow warm-up comes first."""
    every = [{"time_s": 9.0, "warmup": True}, *({"time_s": time_s, "warmup": False} for time_s in times_s)]
    mean_s = fmean(times_s)
    return {"summary": {"hardware_flops_per_s": 1e15 / mean_s, "time_per_iteration_s": mean_s}, "iterations": every}


@pytest.mark.parametrize(
    ("times_s", "outcome"),
    [
        ([1.0] * 8, None),
        ([1.24, 1.22] * 4, None),
        ([1.26, 1.28] * 4, "the target is missed: "),
        ([1.2] * 5 + [1.3] * 3, "undecided whether the target is reached: "),
        ([1.0] * 5, "undecided whether the target is reached: too few steps"),
    ],
)
def test_a_target_is_reached_by_the_whole_interval_over_steps(times_s: list[float], outcome: str | None) -> None:
    rate = Number(paper="a", where="Table I", metric="hardware_flops_per_s", value=1, unit="Pflop/s", tolerance=0.2)
    reason = figures.unreached(steps(*times_s), rate)
    assert reason is None if outcome is None else str(reason).startswith(outcome)


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", systems.names())
def test_every_system_has_points_of_every_study_with_names_of_their_own_and_models_that_exist(
    study: str, name: str
) -> None:
    points = series.points(study, name)
    assert points
    assert len({str(point) for point in points}) == len(points)
    assert {point.model for point in points} <= set(published())


def test_a_system_named_nowhere_runs_the_series_of_any_other() -> None:
    devices = [point.devices for point in series.points("weak_scaling", "brandnew")]
    assert devices == [512, 1024, 2048, 4096, 8192, 64, 128, 256, 512, 1024, 16]


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
            assert second.sequences == first.sequences * (2 if line.startswith("axonn-ipdps22") else 1)


def test_the_micro_batches_of_the_oldest_series_are_those_of_its_table_2() -> None:
    points = [point for point in series.points("weak_scaling", "summit") if point.series.name != "night"]
    assert [(point.model, point.micro_batch) for point in points] == 2 * [
        *(("gpt-12b", 8), ("gpt-24b", 4), ("gpt-50b", 4), ("gpt-100b", 2))
    ]
    of_text = [point for point in series.points("weak_scaling", "frontier") if point.model.startswith("gpt")]
    assert {point.micro_batch for point in of_text} == {2}


@pytest.mark.parametrize("model", ["gpt-5b", "gpt-10b", "gpt-20b", "gpt-40b", "gpt-80b"])
def test_frontiers_ablation_has_communication_over_z_to_hide_with_every_model(model: str) -> None:
    """By the engine's own choice."""
    (point,) = [point for point in series.points("overlap_ablation", "frontier") if point.model == model]
    config, batch = lookup(model), Batch(point.sequences, point.micro_batch)
    training = Training(config, batch, precision="bf16", checkpoint_every=1)
    bandwidths = Bandwidths(8, inter=100e9, within=50e9)
    assert point.grid == series.AUTO
    grid = choose_grid(training, point.devices, devices_per_node=8, device_memory=64e9, bandwidths=bandwidths)
    check_grid(config, grid, batch)
    assert grid.size == point.devices
    assert grid.z > 1
    assert grid.x * grid.y <= 8


def test_the_running_example_of_the_ablation_is_the_papers() -> None:
    (point, _) = series.points("overlap_ablation", "perlmutter")
    tokens = point.sequences * published()[point.model].sequence
    assert (point.model, point.devices, point.grid, point.series.cache) == ("gpt-20b", 16, "2x2x4x1", 28)
    assert tokens == 32 * 1024


def test_the_series_of_small_models_double_their_work_with_their_ranks() -> None:
    def work(name: str) -> float:
        model = published()[name]
        h, s = model.hidden, model.sequence
        return model.layers * h * h * (1 + s / (6 * h) + model.vocabulary / (16 * model.layers * h))

    for name, sizes in (("local", [1, 2, 4]), ("vcluster", [2, 4, 8])):
        points = [point for point in series.points("weak_scaling", name) if point.model.startswith("gpt")]
        assert [point.devices for point in points] == sizes
        for smaller, larger in pairwise(points):
            assert work(larger.model) / work(smaller.model) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("system", "name", "growth"),
    [
        ("perlmutter", "par4d-unet", [1, 2.63, 3.97, 8.92, 15.8]),
        ("frontier", "par4d-unet", [1, 2.63, 3.97, 8.92, 15.8]),
        ("local", "local-unet", [1, 2.25, 3.99]),
        ("vcluster", "vcluster-unet", [1, 1.78, 3.99]),
    ],
)
def test_the_work_of_u_nets_doubles_with_their_ranks_as_nearly_as_channels_allow(
    system: str, name: str, growth: list[float]
) -> None:
    points = [point for point in series.points("weak_scaling", system) if point.series.name == name]
    points = sorted(points, key=lambda point: point.devices)
    assert [point.devices / points[0].devices for point in points] == [2**place for place in range(len(growth))]
    work = [model_flops(lookup(point.model), point.sequences) for point in points]
    assert [flops / work[0] for flops in work] == pytest.approx(growth, rel=0.005)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("sequences: 0", r"weak_scaling\.0\.sequences.*greater than 0"),
        ("sequences: 8, cache: most", r"weak_scaling\.0\.cache"),
        ("sequences: 8, rounds: 0", r"weak_scaling\.0\.rounds.*greater than 0"),
        ("sequences: 8, time_limit: soon", r"weak_scaling\.0\.time_limit"),
        ("sequences: 8, time_limit: {2: 8m}", r"time limits are given for \[2\] devices, but not for 4"),
        ("sequences: 8, time_limit: {2: 8m, 4: soon}", r"weak_scaling\.0\.time_limit"),
        ("sequences: 8, repeats: 0", r"weak_scaling\.0\.repeats"),
        ("sequences: 8, layouts: {ddp: {2: {data: 2}}}", "ddp, which isn't among the series' peers"),
        ("sequences: 8, peers: [ddp], layouts: {ddp: {8: {data: 8}}}", "8 devices, which the series doesn't run"),
        ("sequences: 8, peers: [ddp], layouts: {ddp: {4: {data: 2}}}", "ddp for 4 devices has 2 ranks"),
        ("sequences: 8, peers: [ddp], layouts: {ddp: {4: {rows: 4}}}", r"layouts\.ddp\.4\.rows"),
        ("sequences: 8, offlaod: true", r"weak_scaling\.0\.offlaod.*not permitted"),
        ("sequences: 8, overlap: often", r"weak_scaling\.0.*often"),
        ("sequences: 8, also_overlap: often", r"weak_scaling\.0.*often"),
        ("sequences: 8, iterations: 3, warmup: 3", r"weak_scaling\.0.*of 3 iterations none"),
        ("sequences: 8, optim: {beta3: 0.5}", r"weak_scaling\.0\.optim.*beta3"),
        ("sequences: {2: 8}", r"weak_scaling\.0.*sequences are given for \[2\] devices, but not for 4"),
        ("sequences: 8, micro_batch: {4: 8}", r"0.*micro-batches are given for \[4\] devices, but not for 2"),
        ("sequences: 8, micro_batch: {2: 0, 4: 8}", r"weak_scaling\.0\.micro_batch"),
        ("sequences: 8, micro_batch: {gpt-tset: 8, 2: 8, 4: 8}", "micro-batches are given for gpt-tset"),
        ("sequences: 8, known_to_fit: true", r"weak_scaling\.0.*micro_batch.* missing"),
        ("sequences: 8, grids: {gpt-tset: [2x1x1x1]}", "grids are given for gpt-tset, which the series doesn't run"),
        ("sequences: 8, grids: {gpt-test: []}", r"weak_scaling\.0\.grids"),
        ("sequences: 8, grids: {8: [2x1x1x1]}", "grids are given for 8, which the series doesn't run"),
        ("sequences: 8, schedules: [slowest]", r"weak_scaling\.0\.schedules"),
        ("sequences: 8, checkpoint_every: -1", r"weak_scaling\.0.*-1"),
        ("sequences: 8, checkpoint_every: often", r"weak_scaling\.0\.training\.checkpoint_every"),
    ],
)
def test_a_bad_file_is_told_the_key_in_one_line(tmp_path: Path, entry: str, told: str) -> None:
    file = tmp_path / "series.yaml"
    series_of_two = "systems: {a: {2: gpt-test, 4: gpt-test}}"
    file.write_text(f"weak_scaling: [{{name: a, source: b, precision: fp32, {entry}, {series_of_two}}}]")
    with pytest.raises(UsageError, match=rf"series\.yaml.*{told}") as refusal:
        series.read(file)
    assert "\n" not in str(refusal.value)
