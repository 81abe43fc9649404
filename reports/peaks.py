"""The peak that a rate is compared with: the vendor's advertised one and the best matrix multiplication seen.

The advertised peak is the one given to the run, else that of the system's file. The empirical peak is that of the
system's file, else the best of our own gemm results on that system, partition and number format.
"""

import math
from dataclasses import dataclass

import pandas as pd

import systems


@dataclass(frozen=True, slots=True)
class PeakRate:
    """Flop/s of one device, and where the figure comes from."""

    flops_per_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """What is known of one (system, partition, dtype). None: not known."""

    advertised: PeakRate | None
    empirical: PeakRate | None


@dataclass(frozen=True, slots=True)
class MeasuredPeak:
    """The best rate of a gemm result. partition: "" where the run named none."""

    partition: str
    peak: PeakRate


def measured(runs: pd.DataFrame) -> dict[tuple[str, str], list[MeasuredPeak]]:
    """The gemm results among the runs, by (system, dtype)."""
    done = runs[(runs["kind"] == "gemm") & (runs["status"] == "ok") & runs["best_flops_per_s"].notna()]
    found: dict[tuple[str, str], list[MeasuredPeak]] = {}
    columns = ["system", "dtype", "partition", "best_flops_per_s", "source"]
    for system, dtype, partition, rate, source in done[columns].itertuples(index=False):
        found.setdefault((system, dtype), []).append(
            MeasuredPeak(partition, PeakRate(rate, f"measured here, {source}"))
        )
    return found


def lookup(best: dict[tuple[str, str], list[MeasuredPeak]], system: str, partition: str, dtype: str) -> Peaks:
    """The peaks of a system's device for a number format. best: what `measured` found."""
    advertised, empirical = _facts(system, dtype)
    here = (one for one in best.get((system, dtype), []) if one.partition in ("", partition) or not partition)
    highest = max((one.peak for one in here), key=lambda peak: peak.flops_per_s, default=None)
    return Peaks(advertised, empirical or highest)


def with_peaks(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with columns advertised, empirical (flop/s of one device) and hfu, mfu, of_empirical (fractions)."""
    table = runs.copy()
    best_rates = measured(runs)
    known: dict[tuple[str, str, str], Peaks] = {
        key: lookup(best_rates, *key) for key in set(zip(runs["system"], runs["partition"], runs["dtype"], strict=True))
    }
    keys = list(zip(table["system"], table["partition"], table["dtype"], strict=True))
    listed = [_rate(known[key].advertised) for key in keys]
    best = [_rate(known[key].empirical) for key in keys]
    table["advertised"] = table["given_peak"].fillna(pd.Series(listed, index=table.index, dtype=float))
    table["empirical"] = pd.Series(best, index=table.index, dtype=float)
    devices = table["ranks"].astype(float)
    table["hfu"] = table["hardware_flops_per_s"] / (devices * table["advertised"])
    table["mfu"] = table["model_flops_per_s"] / (devices * table["advertised"])
    table["of_empirical"] = table["hardware_flops_per_s"] / (devices * table["empirical"])
    return table


def _rate(peak: PeakRate | None) -> float:
    return peak.flops_per_s if peak else math.nan


def _facts(system: str, dtype: str) -> tuple[PeakRate | None, PeakRate | None]:
    """The advertised and the empirical peak in a system's file; nothing for a system without one."""
    if system not in systems.names():
        return None, None
    device = systems.load(system).device
    advertised, empirical = (
        next((PeakRate(fact.value, fact.source) for name, fact in facts.items() if name == dtype), None)
        for facts in (device.peak_flops, device.empirical_peak_flops)
    )
    return advertised, empirical
