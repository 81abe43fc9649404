"""The series of the suites run what the papers ran (papers.yaml), and nothing under a paper's name that it didn't.

A difference is one line with the study, series, system, devices and model of its point, and the field.
"""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from engine import yaml_text
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.unet.config import UNetConfig
from engine.overlap.flags import ALL, Overlap, flags
from engine.schema import Record
from engine.training_record import OptimConfig
from suites.base import series
from suites.base.series import EVERY, Point, Series

PAPERS = Path(__file__).with_name("papers.yaml")
COMPARED_WITH_RIVALS = "baselines"
"""Study whose points are contests, which test_papers_rivals.py compares."""
Flag = Literal["oar", "ors", "oag", "cache", "data"]


class Here(Record):
    """Iterations of a point that are the series' own choice."""

    iterations: tuple[int, ...]
    """any of these"""
    warmup: int
    reason: str


class Printed(Record):
    """Point of a paper; what is None isn't printed."""

    paper: str
    study: str
    series: str
    place: tuple[str, ...]
    system: str
    devices: int
    model: str
    tokens: int | None = None
    sequences: int | None = None
    sequence: int | None = None
    resolution: int | None = None
    precision: str
    recomputed: bool | Literal["auto"] | None = None
    tune_matmul: bool | None = None
    overlap: tuple[Flag, ...] | None = None
    overlap_at_least: tuple[Flag, ...] = ()
    iterations: int | None = None
    counted: int | None = None
    optim: dict[str, float] = {}
    micro_batch: int | None = None
    grid: str | None = None
    every_grid: Literal[True] | None = None
    stages: int | None = None
    data: int | None = None
    schedule: str | None = None
    offload: bool | None = None
    reduce_dtype: str | None = None
    cache: int | None = None
    token_budget: float | None = None
    here: Here | None = None
    left_out: str | None = None
    implied: frozenset[str] = frozenset()
    no_key: dict[str, str] = {}
    note: str = ""

    def __str__(self) -> str:
        stages = f" of {self.stages} stages" if self.stages else ""
        return f"{self.study} {self.series} on {self.system}, {self.devices} x {self.model}{stages}"


class Beside(Record):
    """Points that no paper has, although their series names one as its source."""

    study: str
    series: str
    systems: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    reason: str

    def knows(self, key: "Key") -> bool:
        """Tell whether the point is one of these."""
        study, name, system, _, model = key
        return (
            (study, name) == (self.study, self.series)
            and (not self.systems or system in self.systems)
            and (not self.models or model in self.models)
        )


Key = tuple[str, str, str, int, str]
"""Study, series, system, devices and model of a point."""


def key_of(point: Printed) -> Key:
    return point.study, point.series, point.system, point.devices, point.model


@cache
def table() -> dict[str, list[Printed]]:
    """Return the table's points by block, which is named by paper, study and place."""
    blocks: dict[str, list[Printed]] = {}
    for block in yaml_text.read(PAPERS)["points"]:
        shared = {"series": block["paper"]} | {key: block[key] for key in block if key not in ("points", "systems")}
        name = f"{block['paper']} {block['study']} {shared['series']} {block['place'][0]}"
        assert name not in blocks
        blocks[name] = [
            Printed.model_validate(shared | {"system": system} | row)
            for system in block.get("systems", [""])
            for row in block["points"]
        ]
    return blocks


@cache
def beside() -> list[Beside]:
    return [Beside.model_validate(entry) for entry in yaml_text.read(PAPERS)["ours_beside"]]


def printed() -> list[Printed]:
    return [point for points in table().values() for point in points]


def option(of: Series, name: str) -> Any:
    """Return a key of a series; None for one that it hasn't."""
    return getattr(of, name, None)


def overlap(of: Series) -> list[str]:
    """List the flags of overlap that are on, which are all unless the series says which."""
    given = option(of, "overlap") or ALL
    return sorted(flags(Overlap.parse(given) if isinstance(given, str) else given))


def optim(of: Series) -> dict[str, Any]:
    """Return the optimizer's settings, with the engine's defaults for what the series leaves open."""
    given = option(of, "optim") or {}
    given = (
        given if isinstance(given, dict) else {one.name: getattr(given, one.name, None) for one in fields(OptimConfig)}
    )
    return asdict(OptimConfig()) | {name: value for name, value in given.items() if value is not None}


def recomputed(ours: Point) -> bool | str:
    """Tell whether activations are recomputed, or by which rule."""
    together = ours.series.training.recomputed_together
    return together if together == "auto" else together != 0


def resolution(ours: Point) -> int | None:
    """Count the pixels of an image's side; None of a network that sees none."""
    network = lookup(ours.model)
    return network.image if isinstance(network, UNetConfig) else None


def only_stages_and_data(ours: Point) -> Grid:
    """Return the grid; one of a single rank where a layer is split too, or the grid is open."""
    grid = Grid() if ours.grid == series.AUTO else Grid.parse(ours.grid)
    return grid if grid.plane * grid.z == 1 else Grid()


OURS: dict[str, Callable[[Point], Any]] = {
    "tokens": lambda ours: ours.sequences * (ours.series.sequence or lookup(ours.model).sequence),
    "sequences": lambda ours: ours.sequences,
    "sequence": lambda ours: ours.series.sequence or lookup(ours.model).sequence,
    "resolution": resolution,
    "precision": lambda ours: ours.series.precision,
    "recomputed": recomputed,
    "tune_matmul": lambda ours: option(ours.series, "tune_matmul"),
    "micro_batch": lambda ours: ours.micro_batch,
    "grid": lambda ours: ours.grid,
    "every_grid": lambda ours: ours.series.grids == EVERY,
    "stages": lambda ours: only_stages_and_data(ours).stages,
    "data": lambda ours: only_stages_and_data(ours).data,
    "schedule": lambda ours: ours.schedule,
    "offload": lambda ours: ours.series.training.offload,
    "reduce_dtype": lambda ours: ours.series.training.reduce_dtype,
    "cache": lambda ours: ours.series.cache,
    "token_budget": lambda ours: ours.series.token_budget,
}
"""Fields of the table that are read off a point as they are printed."""


def compared(point: Printed, ours: Point) -> Iterator[tuple[str, Any, Any]]:
    """Give each field that is printed, with the table's value and the series'."""
    for field, read in OURS.items():
        if (wanted := getattr(point, field)) is not None:
            yield field, wanted, read(ours)
    warmup = option(ours.series, "warmup")
    if point.here:
        given = ours.series.iterations
        yield "iterations", point.here.iterations, point.here.iterations if given in point.here.iterations else given
        yield "warmup", point.here.warmup, warmup
    elif point.iterations is not None and point.counted is not None:
        yield "iterations", point.iterations, ours.series.iterations
        yield "warmup", point.iterations - point.counted, warmup
    on = overlap(ours.series)
    if point.overlap is not None:
        yield "overlap", sorted(point.overlap), on
    yield "overlap", sorted(point.overlap_at_least), [flag for flag in on if flag in point.overlap_at_least]
    settings = optim(ours.series)
    for name, value in point.optim.items():
        yield f"optim.{name}", value, settings[name]


@cache
def points_of_the_file(study: str, system: str) -> list[Point]:
    """Return a study's points on a system; none of a study that there isn't."""
    return series.points(study, system) if study in series.read() else []


def differences(points: list[Printed], points_of: Callable[[str, str], list[Point]] = points_of_the_file) -> list[str]:
    """Say what of the table's points the series hasn't, or has otherwise; of what is left out, what it has."""
    found = []
    for point in points:
        key = (point.series, point.devices, point.model)
        same = [
            ours for ours in points_of(point.study, point.system) if (ours.series.name, ours.devices, ours.model) == key
        ]
        if point.stages and len(same) > 1:
            same = [ours for ours in same if only_stages_and_data(ours).stages == point.stages]
        if point.left_out:
            found += [f"{point}: is run, but left out in the table" for _ in same[:1]]
            continue
        if not same:
            found.append(f"{point}: is missing ({', '.join(point.place)})")
        lines = [
            f"{point}: {field} is {value}, {point.paper} has {wanted} ({', '.join(point.place)})"
            for ours in same
            for field, wanted, value in compared(point, ours)
            if value != wanted
        ]
        found += list(dict.fromkeys(lines))
    return found


def under_a_papers_name() -> set[Key]:
    """Return the points of all series that name a paper as their source, on every system."""
    papers = tuple({point.paper for point in printed()})
    return {
        (study, of.name, system, devices, model)
        for study, every in series.read().items()
        if study != COMPARED_WITH_RIVALS
        for of in every
        if of.source.startswith(papers)
        for system, sizes in of.systems.items()
        for devices, models in sizes.items()
        for model in ([models] if isinstance(models, str) else models)
    }


def unknown() -> set[Key]:
    """Return the points under a paper's name that neither the table nor its list of ours knows."""
    known = {key_of(point) for point in printed()}
    return {key for key in under_a_papers_name() - known if not any(entry.knows(key) for entry in beside())}


@pytest.mark.parametrize("block", table())
def test_points_of_the_papers_are_run_as_printed(block: str) -> None:
    assert differences(table()[block]) == []


def test_no_series_runs_under_a_papers_name_what_the_paper_has_not() -> None:
    assert unknown() == set()


def test_each_entry_of_what_is_ours_has_points_and_none_of_the_papers() -> None:
    points, known = under_a_papers_name(), {key_of(point) for point in printed() if not point.left_out}
    for entry in beside():
        theirs = {key for key in points if entry.knows(key)}
        assert theirs, entry
        assert not theirs & known, entry


def test_the_table_has_every_point_of_each_study_once() -> None:
    """Counts by hand, from the tables and figures."""
    found: dict[tuple[str, str], int] = {}
    for point in printed():
        found[point.paper, point.study] = found.get((point.paper, point.study), 0) + 1
    assert found == {
        ("par4d", "weak_scaling"): 2 * (5 + 5),
        ("par4d", "strong_scaling"): 2 * 5,
        ("par4d", "overlap_ablation"): 1,
        ("par4d", "model_validation"): 1,
        ("axonn-sc24", "weak_scaling"): 15,
        ("axonn-sc24", "strong_scaling"): 7 + 5,
        ("axonn-sc24", "overlap_ablation"): 1,
        ("axonn-sc24", "model_validation"): 2,
        ("axonn-sc24", "optimisations"): 5,
        ("axonn-sc24", "kernel_tuning"): 7,
        ("axonn-ipdps22", "weak_scaling"): 2 * 4,
        ("axonn-ipdps22", "strong_scaling"): 2 * 4,
        ("axonn-ipdps22", "pipeline"): 4,
        ("axonn-ipdps22", "offload"): 2 + 1,
    }
    keys = [(*key_of(point), point.stages, point.paper, point.place) for point in printed()]
    assert len(set(keys)) == len(keys)


def test_stages_and_copies_of_the_table_are_all_devices() -> None:
    of_stages = [point for point in printed() if point.stages is not None]
    assert len(of_stages) == 4 + 4 + 4 + 2
    assert all(point.devices == point.stages * (point.data or 0) for point in of_stages if point.stages)


def test_what_is_implied_has_a_value_and_what_is_not_run_as_printed_a_reason() -> None:
    assert all(getattr(point, field) is not None for point in printed() for field in point.implied)
    here = [point for point in printed() if point.here is not None]
    assert [(point.devices, point.model) for point in here] == [(128, "gpt-80b"), (1024, "gpt-640b")]
    assert all(point.here.reason for point in here if point.here)


def test_places_and_reasons_are_filled_in() -> None:
    places = {place for point in printed() for place in point.place}
    assert all(re.fullmatch(r"Table [IVX]+|Fig\. \d+|section [IVX]+(-[A-D])?", place) for place in places), places
    assert all(entry.reason for entry in beside())
    assert all(len(point.left_out) > 10 for point in printed() if point.left_out is not None)


Edit = Callable[[list[dict[str, Any]]], None]
"""Change of the series of one name."""


def set_to(**values: Any) -> Edit:
    """Return an edit that sets these keys."""

    def edit(every: list[dict[str, Any]]) -> None:
        for of in every:
            of.update(values)

    return edit


def without(system: str, devices: int) -> Edit:
    """Return an edit that takes the points of so many devices away."""

    def edit(every: list[dict[str, Any]]) -> None:
        for of in every:
            of["systems"].get(system, {}).pop(devices, None)

    return edit


def beside_them(system: str, devices: int, model: str) -> Edit:
    """Return an edit that adds a point."""
    return lambda every: every.append(every[0] | {"systems": {system: {devices: model}}})


def plant(monkeypatch: pytest.MonkeyPatch, folder: Path, study: str, name: str, *edits: Edit) -> None:
    """Have a copy of the study's series read, where those of the name are edited."""
    every = yaml_text.read(series.FILE)[study]
    edited = [deepcopy(of) for of in every if of["name"] == name]
    for edit in edits:
        edit(edited)
    file = folder / "series.yaml"
    file.write_text(yaml.safe_dump({study: [of for of in every if of["name"] != name] + edited}))
    monkeypatch.setattr(series, "read", partial(series.read, file))


WEAK, STRONG = "axonn-sc24 weak_scaling axonn-sc24 Table III", "axonn-sc24 strong_scaling axonn-sc24 Fig. 9"
PAR4D, OLDEST = "par4d weak_scaling par4d Table III", "axonn-ipdps22 weak_scaling axonn-ipdps22-table-2 Table I"
PIPELINES = "axonn-ipdps22 pipeline axonn-ipdps22 Fig. 5"


@pytest.mark.parametrize(
    ("block", "edit", "field", "count"),
    [
        (WEAK, without("frontier", 32768), "is missing", 1),
        (WEAK, set_to(systems={"alps": {6144: "gpt-80b"}}), "is missing", 15),
        (WEAK, set_to(sequences=4096), "tokens is 8388608", 15),
        (WEAK, set_to(tune_matmul=False), "tune_matmul is False", 15),
        (WEAK, set_to(precision="fp16"), "precision is fp16", 15),
        (WEAK, set_to(checkpoint_every=0), "recomputed is False", 15),
        (WEAK, set_to(overlap="all"), "overlap is", 15),
        (STRONG, set_to(token_budget=3.0e11), "token_budget is", 11),
        (STRONG, beside_them("frontier", 512, "gpt-640b"), "is run, but left out", 1),
        (PAR4D, set_to(warmup=2), "warmup is 2", 10),
        (PAR4D, set_to(overlap="oar,ors,oag"), "overlap is", 10),
        (OLDEST, set_to(iterations=10), "iterations is 10", 4),
        (OLDEST, set_to(optim={"learning_rate": 0.001, "weight_decay": 0.01}), "optim.beta2 is 0.95", 4),
        (OLDEST, set_to(micro_batch=2), "micro_batch is 2", 3),
        (OLDEST, set_to(grids=["1x1x1x8p6"]), "stages is 6", 3),
        (OLDEST, set_to(checkpoint_every=4), "recomputed is True", 4),
        (OLDEST, set_to(reduce_dtype="fp32"), "reduce_dtype is fp32", 4),
        (PIPELINES, set_to(grids=["1x1x1x8p6", "1x1x1x4p12"]), "is missing", 2),
    ],
)
def test_a_planted_fault_is_found_with_its_point_and_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: str, edit: Edit, field: str, count: int
) -> None:
    points = table()[block]
    before = differences(points)
    plant(monkeypatch, tmp_path, points[0].study, points[0].series, edit)
    found = set(differences(points, cache(series.points))) - set(before)
    assert len(found) == count
    names = [str(point) for point in points]
    assert all(field in line and line.partition(": ")[0] in names for line in found)


def test_a_point_that_no_paper_has_is_found_under_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, tmp_path, "weak_scaling", "par4d", beside_them("frontier", 2048, "gpt-80b"))
    assert unknown() == {("weak_scaling", "par4d", "frontier", 2048, "gpt-80b")}
