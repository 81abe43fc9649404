"""The peak that a rate is compared with: the vendor's advertised one and what matrix products alone reach.

A run's own figures go first. A run that has none is compared with the advertised peak of the system's file, and with
the empirical one of that file, else with that of a gemm result of the same system, partition and number format on as
many ranks at once, on processors with as many threads each; on accelerators one device alone stands for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

import systems
from engine.result import metrics
from reports.derived import by_row
from reports.text import plural

OWN = "measured by the job's ranks at once"
GIVEN = "given to the job"


@dataclass(frozen=True, slots=True)
class PeakRate:
    """Flop/s of one device, and where the figure comes from."""

    flops_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a system's file says of one number format. None: nothing."""

    advertised: PeakRate | None
    empirical: PeakRate | None


@dataclass(frozen=True, slots=True)
class MeasuredPeak:
    """The best rate of a gemm result, of one of its ranks. partition, device, threads: "" where it recorded none."""

    partition: str
    ranks: int
    device: str
    threads: str
    flops_per_s: float


def with_peaks(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with columns advertised, empirical (flop/s of one device), empirical_from, hfu, mfu, of_empirical."""
    table = runs.copy()
    found = measured(runs)
    keys = list(zip(runs["system"], runs["dtype"], strict=True))
    known = {key: facts(*key) for key in set(keys)}
    stated = [known[key] for key in keys]
    best = [_empirical(run, peaks, found) for run, peaks in zip(runs.to_dict("records"), stated, strict=True)]
    listed = [peaks.advertised.flops_per_s if peaks.advertised else math.nan for peaks in stated]
    table["advertised"] = table["given_peak"].fillna(pd.Series(listed, index=table.index, dtype=float))
    table["empirical"] = pd.Series([peak.flops_per_s for peak in best], index=table.index, dtype=float)
    table["empirical_from"] = pd.Series([peak.source for peak in best], index=table.index, dtype=object)
    ranks, hardware, model = table["ranks"], table["hardware_flops_per_s"], table["model_flops_per_s"]
    for name, work, peak in (
        ("hfu", hardware, "advertised"), ("mfu", model, "advertised"), ("of_empirical", hardware, "empirical"),
    ):  # fmt: skip
        table[name] = table[f"given_{name}"].fillna(by_row(metrics.utilisation, work, ranks, table[peak]))
    return table


def facts(system: str, dtype: str) -> Peaks:
    """The peaks in a system's file; none for a system without one."""
    if system not in systems.names():
        return Peaks(None, None)
    device = systems.load(system).device
    advertised, empirical = (
        next((PeakRate(fact.value, fact.source) for name, fact in stated.items() if name == dtype), None)
        for stated in (device.peak_flops, device.empirical_peak_flops)
    )
    return Peaks(advertised, empirical)


def measured(runs: pd.DataFrame) -> dict[tuple[str, str], list[MeasuredPeak]]:
    """The gemm results among the runs, by (system, dtype)."""
    done = runs[(runs["kind"] == "gemm") & (runs["status"] == "ok") & runs["best_flops_per_s"].notna()]
    found: dict[tuple[str, str], list[MeasuredPeak]] = {}
    columns = ["system", "dtype", "partition", "ranks", "device_kind", "threads", "best_flops_per_s"]
    for system, dtype, *rest in done[columns].itertuples(index=False):
        found.setdefault((system, dtype), []).append(MeasuredPeak(*rest))
    return found


def _empirical(run: Mapping[Any, Any], known: Peaks, found: dict[tuple[str, str], list[MeasuredPeak]]) -> PeakRate:
    if run["own_empirical"] == run["own_empirical"]:
        return PeakRate(run["own_empirical"], OWN if run["own_measured"] else GIVEN)
    if known.empirical:
        return PeakRate(known.empirical.flops_per_s, f"of the system's file, {known.empirical.source}")
    of_system = found.get((run["system"], run["dtype"]), ())
    here = [
        peak for peak in of_system if "" in (run["partition"], peak.partition) or run["partition"] == peak.partition
    ]
    joint = [peak for peak in here if peak.ranks == run["ranks"] and _same_processors(peak, run)]
    alone = [peak for peak in here if peak.ranks == 1 and _accelerator(peak)]
    if not (like := joint or alone):
        return PeakRate(math.nan, "")
    highest = max(peak.flops_per_s for peak in like)
    on = f"{plural(like[0].ranks, 'rank')} at once" if joint else "one device"
    return PeakRate(highest, f"measured on {on} by a job of its own")


def _same_processors(peak: MeasuredPeak, run: Mapping[Any, Any]) -> bool:
    return _accelerator(peak) or (peak.threads != "" and peak.threads == run["threads"])


def _accelerator(peak: MeasuredPeak) -> bool:
    return peak.device not in ("", "cpu")
