"""Results as pandas frames: one row a run, one row a counted thing in it.

Numbers that were not measured, and ones that aren't finite, are NaN; missing texts are "". Column `run` of the long
frames is the index of `runs`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from engine.grid import Grid
from engine.overlap.flags import Pace, bucket_bytes
from engine.result import metrics
from engine.result.schema import Result
from engine.tensor_mode import ALGORITHM_1
from reports.derived import by_row
from reports.frames import contests, origin
from reports.frames.devices import broadcasts, gemm_modes, rings, samples, transfers
from reports.frames.evaluations import evaluations
from reports.frames.jobs import as_others, fields, long, with_moments
from reports.frames.layers import layers
from reports.frames.predictions import Predictions, newest_first
from reports.frames.sides import STEP_COLUMNS, Sides, sides, step_values
from reports.frames.tunings import Tunings, tunings
from reports.read.load import Checked, Contests, Loaded, Run
from reports.read.peaks import with_peaks
from reports.text import clean, count, number, positive, title

# What tells one series from another: the same machine, number format, list of points and variant of the study.
SERIES = ["system", "partition", "dtype", "series", "variant"]
# What is trained and where: runs that agree in it differ by their overlap only, and can be set against each other.
SETTING = [
    *SERIES,
    *("model", "parameters", "sequence", "ranks", "grid", "batch_size", "micro_batch", "checkpointing", "token_budget"),
    "network",
]
# What tells one point of a series from another. Jobs that agree in all of it are repetitions of one measurement.
# overlap: its flags; tuning: its other options, where they matter and aren't the default.
POINT = [*SETTING, "overlap", "tuning"]
NO_PREDICTIONS = Predictions()
IN_TURNS = "in turns"
"""Overlap of a job that measured several."""
SUITE_LABELS = ("study", "system", "partition", "series", "token_budget", "grid_is")
_TUNES = {"oag": "prefetch_depth", "ors": "reduce_window", "cache=auto": "cache_bytes", "data": "bucket_bytes"}


def series_title(row: "pd.Series[Any]") -> str:
    """Return the name of the series that a run or a point belongs to: frontier, gpu, bf16, axonn-sc24 series."""
    series = row["series"] and f"{row['series']} series"
    return title(row["system"], row["partition"], row["dtype"], series, row["variant"])


@dataclass(frozen=True, eq=False)
class Frames:
    """runs have one row a job; iterations, collectives, gemm, stream, launches and counted_flops one of each that the
    results carry.

    modes, rings, broadcasts, transfers and samples are as devices.py makes them, layers and evaluations as files of
    their names do; energy has a row for each component of results that looked for counters. sides are those of
    contests, and tunings are of the tuner's tables. Contests with peers (contests.py), predictions (predictions.py) and
    checks of GPUs belong to no run.
    """

    runs: pd.DataFrame
    iterations: pd.DataFrame
    collectives: pd.DataFrame
    gemm: pd.DataFrame
    modes: pd.DataFrame
    stream: pd.DataFrame
    launches: pd.DataFrame
    counted_flops: pd.DataFrame
    layers: pd.DataFrame
    evaluations: pd.DataFrame
    rings: pd.DataFrame
    broadcasts: pd.DataFrame
    transfers: pd.DataFrame
    samples: pd.DataFrame
    energy: pd.DataFrame
    sides: Sides
    tunings: Tunings
    contests: pd.DataFrame
    predictions: Predictions
    checks: pd.DataFrame

    def of(self, runs: pd.DataFrame) -> "Frames":
        """Return the same frames with these runs only."""
        parts = (
            *("iterations", "collectives", "gemm", "modes", "stream", "launches", "rings", "transfers"),
            *("broadcasts", "samples", "energy", "counted_flops", "layers", "evaluations"),
        )
        kept = {name: (part := getattr(self, name))[part["run"].isin(runs.index)] for name in parts}
        parted = {name: getattr(self, name).of(runs) for name in ("sides", "tunings")}
        return replace(self, runs=runs, **parted, **kept)


def frames(
    loaded: Sequence[Run],
    held: Sequence[Contests] = (),
    predictions: Predictions = NO_PREDICTIONS,
    checked: Sequence[Checked] = (),
) -> Frames:
    runs = pd.DataFrame([_run(run) for run in loaded], columns=RUN_COLUMNS)
    runs = as_others(runs, "network", ["kind", "study", *(key for key in SETTING if key != "network")])
    runs = with_moments(runs, "start", "end")
    results = [run.result for run in loaded]
    iterations = long(results, lambda one: one.iterations, plain="index counted", numbers="time_s loss grad_norm")
    collectives = long(
        results, lambda one: one.collectives, texts="kind axis", numbers="calls bytes time_s exposed_s hidden_s"
    )
    launches = long(
        results, lambda one: one.launches, plain="name operators samples", positives="median_s low_s high_s"
    )
    return Frames(
        runs,
        iterations.assign(warmup=iterations["counted"].map(lambda counted: not counted)),
        collectives.rename(columns={"time_s": "flight_s"}),
        long(results, lambda one: one.gemm, plain="size repeats skipped", numbers="flops_per_s median_time_s"),
        gemm_modes(results),
        _stream(results),
        launches.rename(columns={"median_s": "launch_s"}),
        _counted_flops(results),
        layers(results),
        evaluations(results),
        rings(results),
        broadcasts(results),
        transfers(results),
        samples(results),
        _energy(results),
        sides(results),
        tunings(results),
        contests.frame(held),
        predictions,
        _checks(checked),
    )


def of_loaded(loaded: Loaded) -> Frames:
    """Make the frames of everything that was read, whose runs have their peaks."""
    predicted = newest_first(loaded.plans, loaded.validations)
    everything = frames(loaded.runs, loaded.contests, predicted, loaded.checks)
    return everything.of(with_peaks(everything.runs))


def _stream(results: Sequence[Result]) -> pd.DataFrame:
    rates = long(
        results,
        lambda one: one.stream.kernels if one.stream else (),
        plain="name",
        positives="best_bytes_per_s median_bytes_per_s",
    )
    arrays = long(results, lambda one: filter(None, [one.stream]), numbers="array_bytes cache_bytes repeats")
    return rates.rename(columns={"name": "kernel"}).merge(arrays, on="run")


def _counted_flops(results: Sequence[Result]) -> pd.DataFrame:
    steps = long(results, lambda one: one.counted_flops, plain="recomputed counted formula")
    ratio = by_row(metrics.formula_over_counted, steps["formula"], steps["counted"])
    return steps.assign(formula_over_counted=ratio)


def _energy(results: Sequence[Result]) -> pd.DataFrame:
    """Where there is no figure, unmeasured says why."""
    components = long(
        results,
        lambda one: one.energy.components if one.energy else (),
        plain="component",
        texts="scope source unmeasured",
        positives="joules_per_iteration tokens_per_joule sample_s counters machines",
    )
    return components.merge(long(results, lambda one: filter(None, [one.energy]), positives="seconds"), on="run")


def _checks(found: Sequence[Checked]) -> pd.DataFrame:
    """Make a row a run of ci/gpu; its device is cuda, or cpu for a rehearsal, and its result the whole of it."""
    rows = [
        (of.device, clean(of.device_name, 120), of.status, of.provenance.end, clean(one.source), of)
        for one in found
        for of in [one.result]
    ]
    return with_moments(pd.DataFrame(rows, columns=["device", "name", "status", "end", "source", "result"]), "end")


RUN_COLUMNS = [
    *("kind", "status", "reason", "series", "variant", "dtype", "model"),
    *("parameters", "sequence", "ranks", "grid", "batch_size", "micro_batch", "checkpointing", "token_budget"),
    *("grid_is", "overlap", "tuning", "disturbed", "counted_iterations", "time_s"),
    *("tokens_per_s", "images_per_s", "hardware_flops_per_s", "model_flops_per_s"),
    *("given_peak", "given_hfu", "given_mfu", "given_of_empirical", "own_empirical", "own_measured"),
    *STEP_COLUMNS,
    *("memory_kind", "memory_max", "memory_min", "prefetch_bytes", "cache_bytes", "cached_blocks", "best_flops_per_s"),
    *("device_kind", "threads", "nodes", "counts_energy", "evaluated"),
    *origin.COLUMNS,
]
_FROM_SUMMARY = {
    **{"time_s": "time_per_iteration_s", "tokens_per_s": "tokens_per_s", "given_peak": "peak_flops_per_device"},
    **{"hardware_flops_per_s": "hardware_flops_per_s", "model_flops_per_s": "model_flops_per_s", "given_hfu": "hfu"},
    **{"given_mfu": "mfu", "given_of_empirical": "of_empirical", "own_empirical": "empirical_peak_flops_per_device"},
}


def _run(run: Run) -> dict[str, Any]:
    result = run.result
    labels, config, model, summary = result.labels, result.config, result.model, result.summary
    memory = result.memory.peak_bytes_per_rank if result.memory else ()
    held = result.memory if result.version > 1 else None  # version 1 did not record what the peak was made of
    overlap = IN_TURNS if result.kind == "ablation" else _option(config, "overlap")
    return {
        **origin.columns(labels, result.provenance, result.transport, run.source, run.remark),
        "kind": result.kind,
        "status": result.status,
        "reason": clean(result.reason or ""),
        "series": "" if labels.get("series") == labels.get("system") else clean(labels.get("series", "")),
        "variant": clean(", ".join(_label(key, labels[key]) for key in sorted(labels) if key not in SUITE_LABELS)),
        "dtype": clean(result.dtype),
        "model": clean(model.name) if model else "",
        "parameters": number(model.parameters if model else None),
        "sequence": number(model.sequence if model else None),
        "ranks": result.ranks,
        "grid": clean(result.grid or ""),
        "batch_size": _option(config, "batch", "sequences"),
        "micro_batch": _option(config, "batch", "micro"),
        "checkpointing": contests.checkpointing(config),
        "token_budget": positive(labels.get("token_budget")),
        "grid_is": clean(labels.get("grid_is", "")),
        "overlap": overlap,
        "tuning": _tuning(overlap, config, result.grid),
        "disturbed": _disturbed(config) if result.kind == "pipeline" else "",
        "counted_iterations": summary.counted_iterations if summary else 0,
        **fields(summary, positive, "", **_FROM_SUMMARY),
        "images_per_s": number(summary.samples_per_s if summary and model and model.vocabulary is None else None),
        "own_measured": bool(summary and summary.empirical_peak_measured),
        **dict(zip(STEP_COLUMNS, step_values(result.breakdown, result.version), strict=True)),
        "memory_kind": result.memory.kind if result.memory else "",
        "memory_max": number(max(memory, default=None)),
        "memory_min": number(min(memory, default=None)),
        **fields(held, number, "prefetch_bytes cache_bytes cached_blocks"),
        "best_flops_per_s": positive(result.best_flops_per_s),
        "device_kind": _option(config, "device"),
        "threads": _option(config, "threads"),
        "nodes": len(set(result.provenance.hosts)),
        "counts_energy": result.energy is not None and any(part.joules for part in result.energy.components),
        "evaluated": bool(result.evaluations),
    }


def _disturbed(config: dict[str, Any]) -> str:
    """Say what was made slower on purpose; "" for nothing."""
    said = []
    stage, delays_s = number(config.get("slow_stage")), positive(config.get("delays_s"))
    if stage == stage:
        said.append(f"stage {count(stage)} slower by {100 * number(config.get('slow_by')):.4g} %")
    if delays_s > 0:
        said.append(f"messages up to {1e3 * delays_s:.4g} ms late")
    return ", ".join(said)


def _label(key: str, value: str) -> str:
    return value if key == "variant" else f"{key}={value}"


def _option(config: dict[str, Any], *path: str) -> str:
    """Return an option of the run as text that jobs can be grouped by; "" where the run had none."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else clean(str(value))


def _tuning(overlap: str, config: dict[str, Any], grid: str | None) -> str:
    """Give the options of the run's flags, of all where they took turns, that aren't the default: prefetch_depth=1. And
    its tensor mode, but for Algorithm 1, and whether its products were tuned, or nothing was stepped.
    """
    flags = list(_TUNES) if overlap == IN_TURNS else overlap.split(",")
    options = [option for word, option in _TUNES.items() if word in flags and option in config]
    defaults = asdict(Pace()) | {"bucket_bytes": _usual_bucket(config, grid)}
    set_to = [f"{name}={config[name]}" for name in options if config[name] != defaults[name]]
    mode = config.get("tensor_mode") or ALGORITHM_1.name
    set_to += [f"tensor_mode={mode}"] if mode != ALGORITHM_1.name else []
    own = {"tune_matmul": bool(config.get("tune_matmul")), "no optimizer": config.get("optimizer") == "none"}
    return clean(", ".join([*set_to, *(word for word, is_so in own.items() if is_so)]))


def _usual_bucket(config: dict[str, Any], grid: str | None) -> float:
    link, devices = (positive(config.get(name)) for name in ("link_bytes_per_s", "devices_per_node"))
    known = link > 0 and devices > 0
    return bucket_bytes(
        Grid.parse(grid or "1x1x1x1").model_replicas, link if known else None, int(devices) if known else 1
    )
