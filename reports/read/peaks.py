"""The peak that a rate is compared with: the vendor's advertised one and what matrix products alone reach.

A run's own figures go first. A run that has none is compared with the advertised peak of the system's file, and with
the empirical one of that file, else with that of a gemm result of the same system, partition and number format on as
many ranks at once, on processors with as many threads each; on accelerators one device alone stands for all.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

import systems
from engine.result import metrics
from reports.derived import by_row
from reports.text import plural
from systems import Fact

Run = Mapping[Any, Any]
"""Row of the frame of runs."""
OWN = "measured by the job's ranks at once"
GIVEN = "given to the job"
TIMES_THE_CACHE = 4
"""Arrays of STREAM are as much greater than the last-level cache, or part of what they reach is the cache's."""
ABOVE = " More than 100 % (above): that peak was measured too low, on another night or clock."


class Peaks(NamedTuple):
    """Peaks of one device in one number format, in flop/s, as far as a system's file has them."""

    advertised: Fact | None = None
    empirical: Fact | None = None


def with_peaks(runs: pd.DataFrame) -> pd.DataFrame:
    """Add advertised, empirical (flop/s of one device), empirical_from, hfu, mfu and of_empirical to the runs."""
    table = runs.copy()
    found = measured(runs)
    keys = list(zip(runs["system"], runs["dtype"], strict=True))
    known = {key: facts(*key) for key in set(keys)}
    stated = [known[key] for key in keys]
    best = [_empirical(run, peaks, found) for run, peaks in zip(runs.to_dict("records"), stated, strict=True)]
    listed = [peaks.advertised.value if peaks.advertised else math.nan for peaks in stated]
    table["advertised"] = table["given_peak"].fillna(pd.Series(listed, index=table.index, dtype=float))
    table["empirical"] = pd.Series([rate for rate, _ in best], index=table.index, dtype=float)
    table["empirical_from"] = pd.Series([source for _, source in best], index=table.index, dtype=object)
    ranks, hardware, model = table["ranks"], table["hardware_flops_per_s"], table["model_flops_per_s"]
    for name, work, peak in (
        ("hfu", hardware, "advertised"),
        ("mfu", model, "advertised"),
        ("of_empirical", hardware, "empirical"),
    ):
        table[name] = table[f"given_{name}"].fillna(by_row(metrics.utilisation, work, ranks, table[peak]))
    return table


def facts(system: str, dtype: str) -> Peaks:
    """Return the peaks in a system's file; none for a system without one."""
    if system not in systems.names():
        return Peaks()
    device = systems.load(system).device
    stated = (device.peak_flops, device.empirical_peak_flops)
    return Peaks(*(next((fact for name, fact in known.items() if name == dtype), None) for known in stated))


def advertised_bandwidth(system: str) -> Fact | None:
    """Return the bandwidth of a device's memory in a system's file; None for a system without one."""
    return systems.load(system).device.memory_bytes_per_s if system in systems.names() else None


def measured(runs: pd.DataFrame) -> dict[tuple[str, str], list[Run]]:
    """Return the gemm results among the runs, by (system, dtype)."""
    done = runs[(runs["kind"] == "gemm") & (runs["status"] == "ok") & runs["best_flops_per_s"].notna()]
    found: dict[tuple[str, str], list[Run]] = {}
    for run in done.to_dict("records"):
        found.setdefault((run["system"], run["dtype"]), []).append(run)
    return found


def _empirical(run: Run, known: Peaks, found: dict[tuple[str, str], list[Run]]) -> tuple[float, str]:
    """Return the empirical peak and where it comes from; NaN where nothing is known."""
    if run["own_empirical"] == run["own_empirical"]:
        return run["own_empirical"], OWN if run["own_measured"] else GIVEN
    if known.empirical:
        return known.empirical.value, f"of the system's file, {known.empirical.source}"
    of_system = found.get((run["system"], run["dtype"]), ())
    here = [one for one in of_system if one["partition"] in ("", run["partition"]) or run["partition"] == ""]
    joint = [one for one in here if one["ranks"] == run["ranks"] and _same_processors(one, run)]
    alone = [one for one in here if one["ranks"] == 1 and _accelerator(one)]
    if not (like := joint or alone):
        return math.nan, ""
    on = f"{plural(like[0]['ranks'], 'rank')} at once" if joint else "one device"
    return max(one["best_flops_per_s"] for one in like), f"measured on {on} by a job of its own"


def _same_processors(one: Run, run: Run) -> bool:
    return _accelerator(one) or (one["threads"] != "" and one["threads"] == run["threads"])


def _accelerator(one: Run) -> bool:
    return one["device_kind"] not in ("", "cpu")
