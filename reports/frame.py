"""Results as pandas frames: one row a run, one row a counted thing in it.

Numbers that were not measured, and ones that aren't finite, are NaN; missing texts are "". Column `run` of the long
frames is the index of `runs`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.load import Run
from reports.text import clean

# What tells one series from another: the same machine, number format, list of points and variant of the study.
SERIES = ["system", "partition", "dtype", "series", "variant"]
# What tells one point of a series from another. Jobs that agree in all of it are repetitions of one measurement.
POINT = [*SERIES, "model", "parameters", "sequence", "ranks", "grid", "batch_size", "micro_batch", "checkpointing"]
SUITE_LABELS = ("study", "system", "partition", "series")


def series_title(row: "pd.Series[Any]") -> str:
    """The name of the series that a run or a point belongs to: frontier, gpu, bf16, axonn-sc24 series."""
    series = row["series"] and f"{row['series']} series"
    words = (row["system"] or "unnamed system", row["partition"], row["dtype"], series, row["variant"])
    return clean(", ".join(word for word in words if word), 120)


@dataclass(frozen=True)
class Frames:
    """runs: one row a job. iterations, collectives, gemm: one row each of what the results carry."""

    runs: pd.DataFrame
    iterations: pd.DataFrame
    collectives: pd.DataFrame
    gemm: pd.DataFrame

    def of(self, runs: pd.DataFrame) -> "Frames":
        """The same frames with these runs only."""
        parts = (part[part["run"].isin(runs.index)] for part in (self.iterations, self.collectives, self.gemm))
        return Frames(runs, *parts)


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
    return Frames(
        runs,
        pd.DataFrame(iterations, columns=["run", "index", "time_s", "loss", "grad_norm", "warmup"]),
        pd.DataFrame(collectives, columns=["run", "kind", "axis", "calls", "bytes", "time_s"]),
        pd.DataFrame(gemm, columns=["run", "size", "flops_per_s", "median_time_s", "repeats", "skipped"]),
    )


RUN_COLUMNS = [
    *("kind", "status", "reason", "study", "system", "partition", "series", "variant", "dtype", "model"),
    *(
        "parameters",
        "sequence",
        "ranks",
        "grid",
        "batch_size",
        "micro_batch",
        "checkpointing",
        "counted_iterations",
        "time_s",
    ),
    *("tokens_per_s", "hardware_flops_per_s", "model_flops_per_s", "given_peak", "compute_s", "collectives_s"),
    *("memory_kind", "memory_max", "memory_min", "best_flops_per_s"),
    *("start", "end", "commit", "dirty", "versions", "hosts", "devices", "launcher", "source"),
]


def _run(run: Run) -> tuple[Any, ...]:
    result = run.result
    labels, config, origin = result.labels, result.config, result.provenance
    summary, breakdown = result.summary, result.breakdown
    memory = result.memory.peak_bytes_per_rank if result.memory else ()
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
        summary.counted_iterations if summary else 0,
        _positive(summary.time_per_iteration_s if summary else None),
        _positive(summary.tokens_per_s if summary else None),
        _positive(summary.hardware_flops_per_s if summary else None),
        _positive(summary.model_flops_per_s if summary else None),
        _positive(summary.peak_flops_per_device if summary else None),
        _number(breakdown.compute_s if breakdown else None),
        _number(breakdown.collectives_s if breakdown else None),
        result.memory.kind if result.memory else "",
        _number(max(memory, default=None)),
        _number(min(memory, default=None)),
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


def _names(names: Sequence[str]) -> str:
    """Host or device names, each once, the first few of a long list and how many there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - 4} more" if len(unique) > 5 else ""
    return clean(", ".join(unique[: 4 if more else 5]) + more)


def _number(value: float | None) -> float:
    """A finite number, or NaN."""
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _positive(value: float | None) -> float:
    """A measured time or rate, which is more than zero, or NaN."""
    number = _number(value)
    return number if number > 0 else math.nan
