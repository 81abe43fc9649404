"""Plans and validations for tests of the report, made up but consistent: orders follow from times."""

import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sample_results import START
from sample_steps import simulate

from engine.grid import Axis
from engine.planning.document import Cost, GridPlan, PlannedMemory, Row
from engine.training_record import TrainingOptions
from engine.validation.document import (
    DeviceProducts,
    Effect,
    GridRow,
    JobRows,
    OrderName,
    ProductRow,
    PublishedRow,
    Validation,
    judge_order,
)

GRIDS = ("1x1x128x64", "2x1x128x32", "2x1x64x64", "4x2x32x32", "8x4x32x8")
SOURCE = "axonn-sc24 Table III: flops over the sustained flop/s"
PUBLISHED = {512: ("gpt-5b", 17.9), 1024: ("gpt-10b", 19.0), 2048: ("gpt-20b", 19.3), 8192: ("gpt-80b", 18.5)}
SMALL = tuple(
    f"{x}x{y}x{z}x{data}"
    for x in (1, 2, 4, 8)
    for y in (1, 2, 4, 8)
    for z in (1, 2, 4, 8)
    for data in (1, 2, 4, 8)
    if x * y * z * data == 8
)


def grids_of(devices: int) -> list[str]:
    """Those of 8,192 devices with the data axis, and where need be z, cut to fewer."""
    found = []
    for x, y, z, _ in (map(int, grid.split("x")) for grid in GRIDS):
        shared = math.gcd(z, devices // (x * y))
        found.append(f"{x}x{y}x{shared}x{devices // (x * y * shared)}")
    return found


def plan(
    *, simulated: bool = True, drawn: bool = True, grids: Sequence[str] = (), time_s: float = 14.4, **changes: Any
) -> GridPlan:
    """Return the output of `par4d plan`. drawn: its first grid has a timeline."""
    known: dict[str, Any] = {
        "system": "frontier", "devices_per_node": 8, "device_memory_bytes": 64e9, "reserve": 0.1, "model": "gpt-80b",
        "parameters": 80_000_000_000, "devices": 8192, "asked_sequences": 8203.1, "sequences": 8192,
        "tokens": 8192 * 2048, "overlap": "oar,ors",
        "training": TrainingOptions(precision="bf16", checkpoint_activations=True),
        "token_budget": 1.6e12, "placement_aware": True, "ordered_by": "simulated" if simulated else "equations",
        "valid": 439, "fit": 404,
    } | changes  # fmt: skip
    rows = [
        _row(place, grid, time_s, simulated, drawn and place == 1)
        for place, grid in enumerate(grids or grids_of(known["devices"]), 1)
    ]
    return GridPlan(**known, rows=tuple(rows))


def _row(place: int, grid: str, time_s: float, simulated: bool, drawn: bool) -> Row:
    x, _, z, data = map(int, grid.split("x"))
    seconds = {Axis.X: 0.3 * (x > 1), Axis.Z: 0.1 * (z > 1), Axis.DATA: 0.05 * (data > 1)}
    seconds = {axis: place * part for axis, part in seconds.items() if part}
    costs = [
        Cost(equation="all_gather_z", axis=axis, equations_s=3 * part, as_run_s=5 * part)
        for axis, part in seconds.items()
    ]
    told: dict[str, Any] = {}
    if simulated:
        took = time_s + 0.2 * place
        told = {
            "time_s": took,
            "interval_s": (took / 1.25, took * 1.25),
            "compute_s": took - sum(seconds.values()),
            "hidden_s": 2.0,
            "exposed_s": seconds,
            "hfu": 0.47,
            "mfu": 0.35,
            "days": took,
            "device_hours": 2e5 * took,
            "exact": drawn,
            "timeline": simulate("oar,ors,oag").timeline(took) if drawn else None,
        }
    return Row(
        place=place,
        grid=grid,
        micro_batch=2,
        equations_s=3 * sum(seconds.values()),
        as_run_s=5 * sum(seconds.values()),
        costs=tuple(costs),
        bytes_per_s=dict.fromkeys(Axis, 1e11),
        memory=PlannedMemory(parts={"state": 16e9, "activations": 4e9}, total=20e9, of_device=20 / 64),
        **told,
    )


def published(
    system: str = "frontier", *, off: float = 0.04, baseline_off: float = 0.12, **changes: Any
) -> tuple[PublishedRow, ...]:
    """Rows of a series, the first and the last fitted. off, baseline_off: error of the others."""
    rows = []
    for place, (devices, (model, seconds)) in enumerate(PUBLISHED.items()):
        fitted = place in (0, len(PUBLISHED) - 1)
        predicted = seconds * (1 if fitted else 1 + off * (-1) ** place)
        known: dict[str, Any] = {
            "source": SOURCE, "system": system, "model": model, "devices": devices, "sequences": 8192,
            "measured_s": seconds, "grid": f"1x1x8x{devices // 8}", "micro_batch": 1, "predicted_s": predicted,
            "low_s": 0.8 * predicted, "high_s": 1.25 * predicted, "compute_s": 0.9 * predicted,
            "exposed_s": {"z": 0.1 * predicted}, "baseline_s": seconds * (1 + baseline_off), "fitted": fitted,
        }  # fmt: skip
        rows.append(PublishedRow(**(known | changes)))
    return tuple(rows)


def measured(name: str = "wide", system: str = "vcluster", grids: Sequence[str] = SMALL, **changes: Any) -> JobRows:
    """Every grid of a job, the simulated order nearly right and the agnostic one not."""
    noise = random.Random(name)
    seconds = {grid: 0.5 + 0.15 * place for place, grid in enumerate(noise.sample(grids, len(grids)))}
    predicted = {grid: took * noise.uniform(0.9, 1.1) for grid, took in seconds.items()}
    equations = {grid: took / 2 * noise.uniform(0.6, 1.4) for grid, took in seconds.items()}
    agnostic = {grid: noise.uniform(0.1, 1.0) for grid in seconds}
    costs: dict[OrderName, dict[str, float]] = {
        "planned": predicted,
        "simulated": predicted,
        "equations": equations,
        "agnostic": agnostic,
    }
    places = {
        title: {grid: float(place) for place, grid in enumerate(sorted(by, key=by.__getitem__), 1)}
        for title, by in costs.items()
    }
    rows = [
        GridRow(
            name=grid, grid=grid, measured_s=took, measured_exposed_s=0.3 * took, predicted_s=predicted[grid],
            low_s=predicted[grid] / 1.15, high_s=predicted[grid] * 1.15, exposed_s=0.3 * predicted[grid],
            equations_s=equations[grid], agnostic_s=agnostic[grid], place=places["simulated"][grid],
            place_by_equations=places["equations"][grid], place_agnostic=places["agnostic"][grid], fitted=place < 2,
        )
        for place, (grid, took) in enumerate(seconds.items())
    ]  # fmt: skip
    known: dict[str, Any] = {
        "name": name,
        "system": system,
        "source": "measured on 2026-03-02",
        "model": "gpt-vcluster-small",
        "sequences": 8,
        "grids": tuple(rows),
        "orders": tuple(judge_order(title, by, seconds) for title, by in places.items()),
    }
    return JobRows(**(known | changes))


EFFECTS = (
    Effect(name="overlap", setting="gpt-20b on 4,096 devices", unit="%", predicted=17.0, published_low=13.0,
           published_high=45.0, source="axonn-sc24 Fig. 7"),
    Effect(name="kernel modes", setting="gpt-320b", unit="s", predicted=12.0, published_low=13.19,
           published_high=13.19, source="axonn-sc24 V-C"),
)  # fmt: skip


def alone(device: str = "NVIDIA H200", job: str = "gpt-5b on 1x1x1x1", **changes: Any) -> DeviceProducts:
    """Products of a device, every second one predicted too slow by half, and at one rate by a tenth."""
    rows = [
        ProductRow(
            m=size,
            n=size,
            k=size,
            mode="NN",
            job=job,
            time_s=size * 1e-7,
            predicted_s=size * 1e-7 * (1.5 if place % 2 else 1.0),
            one_rate_s=size * 1.1e-7,
        )
        for place, size in enumerate((256, 1024, 4096, 8192))
    ]
    known: dict[str, Any] = {
        "device": device,
        "source": "measured on 2026-03-02",
        "precision": "bf16",
        "rule": "second",
        "empirical_peak": 7e14,
        "kernel_s": 3e-5,
        "fitted": {job: 0.9},
        "rows": tuple(rows),
    }
    return DeviceProducts(**(known | changes))


def validation(**changes: Any) -> Validation:
    """Return the output of `par4d plan --validate`."""
    known: dict[str, Any] = {
        "published": (*published(), *published("perlmutter", off=0.2, baseline_off=-0.1)),
        "jobs": (measured(), measured("deep")),
        "effects": EFFECTS,
        "products": (alone(kernel_s=4e-6), alone()),
    }
    return Validation(**(known | changes))


def save_predictions(made: Sequence[GridPlan | Validation], folder: Path) -> list[Path]:
    """As files of a folder, each an hour younger than the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, one in enumerate(made):
        path = folder / f"predicted-{number}.json"
        path.write_text(one.to_json())
        moment = START.timestamp() + 3600 * number
        os.utime(path, (moment, moment))
        paths.append(path)
    return paths


def hostile_predictions(name: str) -> list[GridPlan | Validation]:
    """A plan and a validation whose free texts are all this name, with numbers that no machine has."""
    odd = plan(system=name, model=name, overlap=name, sequences=10**400, tokens=10**400, token_budget=1e308)
    first, second, *others = odd.rows
    assert first.timeline
    spans = first.timeline.spans
    spans = (spans[0].model_copy(update={"lane": name, "name": name, "end_s": 0.0}), *spans[1:])
    first = first.model_copy(update={"timeline": first.timeline.model_copy(update={"spans": spans})})
    second = second.model_copy(
        update={"micro_batch": 10**400, "time_s": 0.0, "interval_s": (1e308, 0.0), "days": 1e308}
    )
    rows = (*published(name, source=name, model=name), *published(name, devices=2**30, predicted_s=1e308))
    job = measured(name, name, model=name, source=name)
    empty = job.model_copy(update={"grids": ()})
    return [
        odd.model_copy(update={"rows": (first, second, *others)}),
        Validation(
            published=rows,
            jobs=(job, empty),
            effects=tuple(one.model_copy(update={"name": name, "setting": name, "source": name}) for one in EFFECTS),
            products=(alone(name, name, source=name),),
        ),
    ]
