"""Results as pandas frames: one row a run, one row a counted thing in it.

Numbers that were not measured, and ones that aren't finite, are NaN; missing texts are "". Column `run` of the long
frames is the index of `runs`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from engine.grid import Grid
from engine.overlap.bucket import bucket_bytes
from engine.overlap.flags import Pace
from reports import breakdowns, contests, gpu_checks, origin
from reports.energies import energy
from reports.gemm_modes import gemm_modes
from reports.jobs import as_others, fields, with_moments
from reports.load import Checked, Contests, Run
from reports.predictions import Predictions
from reports.rings import rings
from reports.text import clean, number, positive, title
from reports.tunings import Tunings, tunings
from reports.variants import Variants, variants

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
"""This stands for the overlap of a job that measured several."""
SUITE_LABELS = ("study", "system", "partition", "series", "token_budget")
_TUNES = {"oag": "prefetch_depth", "ors": "reduce_window", "cache=auto": "cache_bytes", "data": "bucket_bytes"}


def series_title(row: "pd.Series[Any]") -> str:
    """The name of the series that a run or a point belongs to: frontier, gpu, bf16, axonn-sc24 series."""
    series = row["series"] and f"{row['series']} series"
    return title(row["system"], row["partition"], row["dtype"], series, row["variant"])


@dataclass(frozen=True)
class Frames:
    """runs: one row a job. iterations, collectives, gemm, stream (a kernel), launches: one row each of what the results
    carry.

    modes: one row a mode of matrix products (gemm_modes.py). rings: one row a shape (rings.py). energy: one row a
    component (energies.py). variants: of the ablations among them. tunings: of the tuner's tables. contests: one row a
    contest with a peer (contests.py), which belong to no run, as predictions (predictions.py) and checks of GPUs do.
    """

    runs: pd.DataFrame
    iterations: pd.DataFrame
    collectives: pd.DataFrame
    gemm: pd.DataFrame
    modes: pd.DataFrame
    stream: pd.DataFrame
    launches: pd.DataFrame
    rings: pd.DataFrame
    energy: pd.DataFrame
    variants: Variants
    tunings: Tunings
    contests: pd.DataFrame
    predictions: Predictions
    checks: pd.DataFrame

    def of(self, runs: pd.DataFrame) -> "Frames":
        """The same frames with these runs only."""
        parts = ("iterations", "collectives", "gemm", "modes", "stream", "launches", "rings", "energy")
        kept = {name: (part := getattr(self, name))[part["run"].isin(runs.index)] for name in parts}
        return replace(self, runs=runs, variants=self.variants.of(runs), tunings=self.tunings.of(runs), **kept)


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
    iterations = [
        (place, step.index, number(step.time_s), number(step.loss), number(step.grad_norm), not step.counted)
        for place, result in enumerate(results)
        for step in result.iterations
    ]
    collectives = [
        (place, clean(c.kind), clean(c.axis), number(c.calls), number(c.bytes), number(c.time_s))
        for place, result in enumerate(results)
        for c in result.collectives
    ]
    gemm = [
        (place, point.size, number(point.flops_per_s), number(point.median_time_s), point.repeats, point.skipped)
        for place, result in enumerate(results)
        for point in result.gemm
    ]
    stream = [
        (place, kernel.name, *map(positive, rates), *map(number, arrays))
        for place, result in enumerate(results)
        if result.stream
        for arrays in [(result.stream.array_bytes, result.stream.cache_bytes, result.stream.repeats)]
        for kernel in result.stream.kernels
        for rates in [(kernel.best_bytes_per_s, kernel.median_bytes_per_s)]
    ]
    launches = [
        (place, time.name, time.operators, time.samples, *map(positive, (time.median_s, time.low_s, time.high_s)))
        for place, result in enumerate(results)
        for time in result.launches
    ]
    return Frames(
        runs,
        pd.DataFrame(iterations, columns=["run", "index", "time_s", "loss", "grad_norm", "warmup"]),
        pd.DataFrame(collectives, columns=["run", "kind", "axis", "calls", "bytes", "flight_s"]),
        pd.DataFrame(gemm, columns=["run", "size", "flops_per_s", "median_time_s", "repeats", "skipped"]),
        gemm_modes(results),
        pd.DataFrame(stream, columns=STREAM_COLUMNS),
        pd.DataFrame(launches, columns=["run", "name", "operators", "samples", "launch_s", "low_s", "high_s"]),
        rings(results),
        energy(results),
        variants(results),
        tunings(results),
        contests.frame(held),
        predictions,
        gpu_checks.frame(checked),
    )


STREAM_COLUMNS = [*("run", "kernel", "best_bytes_per_s", "median_bytes_per_s", "array_bytes", "cache_bytes", "repeats")]
RUN_COLUMNS = [
    *("kind", "status", "reason", "series", "variant", "dtype", "model"),
    *("parameters", "sequence", "ranks", "grid", "batch_size", "micro_batch", "checkpointing", "token_budget"),
    *("overlap", "tuning", "counted_iterations", "time_s"),
    *("tokens_per_s", "hardware_flops_per_s", "model_flops_per_s"),
    *("given_peak", "given_hfu", "given_mfu", "given_of_empirical", "own_empirical", "own_measured"),
    *breakdowns.COLUMNS,
    *("memory_kind", "memory_max", "memory_min", "prefetch_bytes", "cache_bytes", "cached_blocks", "best_flops_per_s"),
    *("device_kind", "threads", "nodes", "counts_energy"),
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
        "checkpointing": _option(config, "checkpoint_activations"),
        "token_budget": positive(labels.get("token_budget")),
        "overlap": overlap,
        "tuning": _tuning(overlap, config, result.grid),
        "counted_iterations": summary.counted_iterations if summary else 0,
        **fields(summary, positive, "", **_FROM_SUMMARY),
        "own_measured": bool(summary and summary.empirical_peak_measured),
        **dict(zip(breakdowns.COLUMNS, breakdowns.values(result.breakdown, result.version), strict=True)),
        "memory_kind": result.memory.kind if result.memory else "",
        "memory_max": number(max(memory, default=None)),
        "memory_min": number(min(memory, default=None)),
        **fields(held, number, "prefetch_bytes cache_bytes cached_blocks"),
        "best_flops_per_s": positive(result.best_flops_per_s),
        "device_kind": _option(config, "device"),
        "threads": _option(config, "threads"),
        "nodes": len(set(result.provenance.hosts)),
        "counts_energy": result.energy is not None and any(part.joules for part in result.energy.components),
    }


def _label(key: str, value: str) -> str:
    return value if key == "variant" else f"{key}={value}"


def _option(config: dict[str, Any], *path: str) -> str:
    """An option of the run as text that jobs can be grouped by; "" where the run had none."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else clean(str(value))


def _tuning(overlap: str, config: dict[str, Any], grid: str | None) -> str:
    """The options of the run's flags, of all where they took turns, that aren't the default: prefetch_depth=1. And
    whether its products were tuned.
    """
    flags = list(_TUNES) if overlap == IN_TURNS else overlap.split(",")
    options = [option for word, option in _TUNES.items() if word in flags and option in config]
    defaults = asdict(Pace()) | {"bucket_bytes": _usual_bucket(config, grid)}
    set_to = [f"{name}={config[name]}" for name in options if config[name] != defaults[name]]
    return clean(", ".join([*set_to, "tune_matmul"] if config.get("tune_matmul") else set_to))


def _usual_bucket(config: dict[str, Any], grid: str | None) -> float:
    link, devices = (positive(config.get(name)) for name in ("link_bytes_per_s", "devices_per_node"))
    known = link > 0 and devices > 0
    return bucket_bytes(
        Grid.parse(grid or "1x1x1x1").model_replicas, link if known else None, int(devices) if known else 1
    )
