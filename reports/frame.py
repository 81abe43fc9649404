"""Results as pandas frames: one row a run, one row a counted thing in it.

Numbers that were not measured, and ones that aren't finite, are NaN; missing texts are "". Column `run` of the long
frames is the index of `runs`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine.overlap.flags import ALL
from engine.result.step import Breakdown, Timeline
from reports.load import Run
from reports.text import clean

# What tells one series from another: the same machine, number format, list of points and variant of the study.
SERIES = ["system", "partition", "dtype", "series", "variant"]
# What is trained and where: runs that agree in it differ by their overlap only, and can be set against each other.
SETTING = [
    *SERIES,
    *("model", "parameters", "sequence", "ranks", "grid", "batch_size", "micro_batch", "checkpointing", "token_budget"),
]
# What tells one point of a series from another. Jobs that agree in all of it are repetitions of one measurement.
# overlap: its flags; tuning: its other options, where they matter and aren't the default.
POINT = [*SETTING, "overlap", "tuning"]
SUITE_LABELS = ("study", "system", "partition", "series", "token_budget")
_TUNES = {"oag": "prefetch_depth", "ors": "reduce_window", "cache=auto": "cache_bytes", "data": "bucket_bytes"}


def series_title(row: "pd.Series[Any]") -> str:
    """The name of the series that a run or a point belongs to: frontier, gpu, bf16, axonn-sc24 series."""
    series = row["series"] and f"{row['series']} series"
    words = (row["system"] or "unnamed system", row["partition"], row["dtype"], series, row["variant"])
    return clean(", ".join(word for word in words if word), 120)


@dataclass(frozen=True)
class Frames:
    """runs: one row a job. iterations, collectives, gemm, phases, axes: one row each of what the results carry.

    timelines: those of the runs that have one, by the index of `runs`.
    """

    runs: pd.DataFrame
    iterations: pd.DataFrame
    collectives: pd.DataFrame
    gemm: pd.DataFrame
    phases: pd.DataFrame
    axes: pd.DataFrame
    timelines: Mapping[int, Timeline]

    def of(self, runs: pd.DataFrame) -> "Frames":
        """The same frames with these runs only."""

        def kept(part: pd.DataFrame) -> pd.DataFrame:
            return part[part["run"].isin(runs.index)]

        return Frames(
            runs, kept(self.iterations), kept(self.collectives), kept(self.gemm), kept(self.phases), kept(self.axes),
            {run: timeline for run, timeline in self.timelines.items() if run in runs.index},
        )  # fmt: skip


def frames(loaded: Sequence[Run]) -> Frames:
    """All results as frames."""
    runs = pd.DataFrame([_run(run) for run in loaded], columns=RUN_COLUMNS)
    for column in ("start", "end"):
        runs[column] = pd.to_datetime(runs[column], errors="coerce", utc=True, format="ISO8601")
    results = [run.result for run in loaded]
    iterations = [
        (number, step.index, _number(step.time_s), _number(step.loss), _number(step.grad_norm), step.warmup)
        for number, result in enumerate(results)
        for step in result.iterations
    ]
    collectives = [
        (number, clean(c.kind), clean(c.axis), _number(c.calls), _number(c.bytes), _number(c.time_s))
        for number, result in enumerate(results)
        for c in result.collectives
    ]
    gemm = [
        (number, point.size, _number(point.flops_per_s), _number(point.median_time_s), point.repeats, point.skipped)
        for number, result in enumerate(results)
        for point in result.gemm
    ]
    parts = [(number, result.breakdown) for number, result in enumerate(results) if result.breakdown]
    phases = [
        (number, clean(p.name), *map(_number, (p.compute_s, p.blocking_s, p.exposed_s, p.hidden_s)))
        for number, breakdown in parts
        for p in breakdown.phases
    ]
    axes = [
        (number, clean(a.axis), _number(a.exposed_s), _number(a.hidden_s))
        for number, breakdown in parts
        for a in breakdown.axes
    ]
    return Frames(
        runs,
        pd.DataFrame(iterations, columns=["run", "index", "time_s", "loss", "grad_norm", "warmup"]),
        pd.DataFrame(collectives, columns=["run", "kind", "axis", "calls", "bytes", "time_s"]),
        pd.DataFrame(gemm, columns=["run", "size", "flops_per_s", "median_time_s", "repeats", "skipped"]),
        pd.DataFrame(phases, columns=["run", "name", "compute_s", "blocking_s", "exposed_s", "hidden_s"]),
        pd.DataFrame(axes, columns=["run", "axis", "exposed_s", "hidden_s"]),
        {number: result.timeline for number, result in enumerate(results) if result.timeline},
    )


RUN_COLUMNS = [
    *("kind", "status", "reason", "study", "system", "partition", "series", "variant", "dtype", "model"),
    *("parameters", "sequence", "ranks", "grid", "batch_size", "micro_batch", "checkpointing", "token_budget"),
    *("overlap", "tuning", "counted_iterations", "time_s"),
    *("tokens_per_s", "hardware_flops_per_s", "model_flops_per_s", "given_peak", "compute_s", "collectives_s"),
    *("blocking_s", "exposed_s", "hideable_s", "hidden_s"),
    *("memory_kind", "memory_max", "memory_min", "prefetch_bytes", "cache_bytes", "cached_blocks", "best_flops_per_s"),
    *("start", "end", "commit", "dirty", "versions", "hosts", "devices", "launcher", "source"),
]


def _run(run: Run) -> tuple[Any, ...]:
    result = run.result
    labels, config, origin = result.labels, result.config, result.provenance
    summary, breakdown = result.summary, result.breakdown
    memory = result.memory.peak_bytes_per_rank if result.memory else ()
    held = result.memory if result.version > 1 else None  # version 1 did not tell what the peak was made of
    overlap = _option(config, "overlap")
    return (
        result.kind,
        result.status,
        clean(result.reason or ""),
        clean(labels.get("study", "")),
        clean(labels.get("system", "")),
        clean(labels.get("partition", "")),
        "" if labels.get("series") == labels.get("system") else clean(labels.get("series", "")),
        clean(", ".join(_label(key, labels[key]) for key in sorted(labels) if key not in SUITE_LABELS)),
        clean(result.dtype),
        clean(result.model.name) if result.model else "",
        _number(result.model.parameters if result.model else None),
        _number(result.model.sequence if result.model else None),
        result.ranks,
        clean(result.grid or ""),
        _option(config, "batch", "sequences"),
        _option(config, "batch", "micro"),
        _option(config, "checkpoint_activations"),
        _positive(labels.get("token_budget")),
        overlap,
        _tuning(overlap, config),
        summary.counted_iterations if summary else 0,
        _positive(summary.time_per_iteration_s if summary else None),
        _positive(summary.tokens_per_s if summary else None),
        _positive(summary.hardware_flops_per_s if summary else None),
        _positive(summary.model_flops_per_s if summary else None),
        _positive(summary.peak_flops_per_device if summary else None),
        _number(breakdown.compute_s if breakdown else None),
        _number(breakdown.collectives_s if breakdown else None),
        *_waits(breakdown),
        *_could_be_hidden(breakdown),
        result.memory.kind if result.memory else "",
        _number(max(memory, default=None)),
        _number(min(memory, default=None)),
        _number(held.prefetch_bytes if held else None),
        _number(held.cache_bytes if held else None),
        _number(held.cached_blocks if held else None),
        _positive(result.best_flops_per_s),
        origin.start,
        origin.end,
        clean(origin.git_commit or ""),
        {True: "modified", False: "clean", None: "unknown"}[origin.git_dirty],
        clean(", ".join(f"{name} {version}" for name, version in sorted(origin.versions.items()))),
        _names(origin.hosts),
        _names(origin.devices),
        clean(origin.launcher),
        clean(run.source, 4000),
    )


def _label(key: str, value: str) -> str:
    return value if key == "variant" else f"{key}={value}"


def _option(config: dict[str, Any], *path: str) -> str:
    """An option of the run as text that jobs can be grouped by; "" where the run had none."""
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else clean(str(value))


def _tuning(overlap: str, config: dict[str, Any]) -> str:
    """The options of the run's flags that aren't the default: prefetch_depth=1."""
    words = overlap.split(",")
    options = [option for word, option in _TUNES.items() if word in words and option in config]
    return clean(", ".join(f"{name}={config[name]}" for name in options if config[name] != getattr(ALL, name)))


def _waits(breakdown: Breakdown | None) -> tuple[float, float]:
    """Seconds of an iteration in waits for what the very next operation needs, and in the others."""
    if breakdown is None or not breakdown.phases:
        return math.nan, math.nan
    blocking = sum(phase.blocking_s for phase in breakdown.phases)
    return _number(blocking), _number(sum(phase.exposed_s for phase in breakdown.phases))


def _could_be_hidden(breakdown: Breakdown | None) -> tuple[float, float]:
    """Seconds of communication in an iteration that compute could hide, and those of them that it did.

    Phase by phase: none can hide more than it has compute, even where several collectives are in flight at once.
    """
    if breakdown is None or not breakdown.phases:
        return math.nan, math.nan
    hideable = did = 0.0
    for phase in breakdown.phases:
        could = min(phase.compute_s, phase.hidden_s + phase.exposed_s)
        hideable += could
        did += min(phase.hidden_s, could)
    return _number(hideable), _number(did)


def _names(names: Sequence[str]) -> str:
    """Host or device names, each once, the first few of a long list and how many there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - 4} more" if len(unique) > 5 else ""
    return clean(", ".join(unique[: 4 if more else 5]) + more)


def _number(value: float | str | None) -> float:
    """A finite number, or NaN."""
    try:
        number = math.nan if value is None else float(value)
    except (OverflowError, ValueError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _positive(value: float | str | None) -> float:
    """A measured time or rate, which is more than zero, or NaN."""
    number = _number(value)
    return number if number > 0 else math.nan
