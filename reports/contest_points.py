"""Contests of several commands as points: whoever held a contest how often, its jobs count together."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from engine.result import metrics, peers
from engine.result.peers import Peaks, PeerContest, Work
from reports.contests import CONTEST, UNEQUAL
from reports.jobs import fields
from reports.text import number
from reports.tunings import changed

_FIGURES = (
    "verdict", "standing", "ratio", "low", "high", "of_medians", "of_medians_low", "of_medians_high", "processor",
    "ours_s", "peer_s", "jobs", "rounds",
)  # fmt: skip
_SPEEDS = tuple(
    f"{side}_{name}"
    for side in ("ours", "peer")
    for name in ("tokens_per_s", "images_per_s", "mfu", "hfu", "of_empirical")
)
_BYTES = ("ours_bytes", "peer_bytes", "memory_ratio")


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Make one row a contest, whoever held it how often, in the order of series, peer and grid.

    ratio, low, high: metrics.paired of all jobs; low, high are NaN where nothing is known of them. verdict: won,
    lost or undecided; standing: of the target, met, missed or undecided, "" without one. of_medians:
    metrics.ratio_of_medians, its extremes over jobs of_medians_low and _high. ours_s, peer_s: medians over all steps.
    losses, norms: the largest difference of any. changed: of how many shapes the tuner changed the products, NaN where
    nothing was tuned. jobs, rounds: of all together; failed: of how many commands it failed. NaN, and "not run", where
    no job ended well. What a side does in a second (in images where the network sees them, of_images), its shares of
    the peaks and its memory: as in engine.result.peers; memory_ratio: metrics.memory_ratio. grid_is: who chose the
    engine's grid, as the suite says it.
    """
    rows = [_point(rows) for _, rows in table.groupby(CONTEST, dropna=False, sort=True)]
    columns = [
        *(*CONTEST, *_FIGURES, "peer_is", "does", "peer_versions", "grid_is", "reason", "losses", "norms", "tolerance"),
        *("compared", "memory_max", "failed", *_SPEEDS, *_BYTES, "peak_measured", "changed", "of_images"),
    ]
    return pd.DataFrame(rows, columns=columns)


def over_one_network(points: pd.DataFrame) -> pd.DataFrame:
    """Select what a headline counts: contests whose sides had the same network, and those that were not run."""
    return points[(points["network"] != UNEQUAL) | (points["jobs"] == 0)]


def most_held(points: pd.DataFrame, by: Sequence[str], most: int) -> list[pd.DataFrame]:
    """Of the points that agree in these columns take those first of which the most contests were held."""
    groups = [rows for _, rows in points.groupby(list(by), dropna=False, sort=True)]
    return sorted(groups, key=lambda rows: -int((rows["jobs"] > 0).sum()))[:most]


def _point(rows: pd.DataFrame) -> dict[str, Any]:
    last = rows.sort_values("end", kind="stable").iloc[-1]
    jobs = [job for contests in rows["contests"] for job in contests]
    known = {
        key: last[key] for key in (*CONTEST, "peer_is", "tolerance", "does", "peer_versions", "grid_is", "of_images")
    }
    known |= {key: rows[key].max() for key in ("losses", "norms", "memory_max")} | {"compared": rows["compared"].min()}
    known["failed"] = int((rows["status"] == "failed").sum())
    known["reason"] = "; ".join(sorted(set(rows["reason"]) - {""}))
    known["changed"] = max((sum(map(changed, job.tuning.shapes)) for job in jobs if job.tuning), default=math.nan)
    known |= _figures(jobs, known["target"])
    return known | _speeds(rows, known) | _memory(jobs)


def _speeds(rows: pd.DataFrame, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return both sides at their median steps; the highest peak that any job knew makes the shares smaller."""
    works = [work for work in rows["work"] if isinstance(work, Work)]
    peaks = [peak for peak in rows["peaks"] if isinstance(peak, Peaks)]
    speeds: dict[str, Any] = dict.fromkeys(_SPEEDS, math.nan) | {"peak_measured": any(peak.measured for peak in peaks)}
    if not works or not point["jobs"] or point["ranks"] < 1:
        return speeds
    best = Peaks(
        advertised=max((peak.advertised or 0.0 for peak in peaks), default=0.0) or None,
        empirical=max((peak.empirical or 0.0 for peak in peaks), default=0.0) or None,
    )
    for side in ("ours", "peer"):
        found = peers.speed(works[-1], best, point["ranks"], point[f"{side}_s"])
        shares = fields(found, lambda share: math.nan if share is None else share, "tokens_per_s mfu hfu of_empirical")
        if point["of_images"]:
            step_s, images = point[f"{side}_s"], number(point["sequences"])
            shares |= {"images_per_s": metrics.rate(images, step_s), "tokens_per_s": math.nan}
        speeds |= {f"{side}_{name}": share for name, share in shares.items()}
    return speeds


def _memory(jobs: Sequence[PeerContest]) -> dict[str, float]:
    ours, peer = (math.nan if taken is None or taken <= 0 else float(taken) for taken in peers.peak_bytes(jobs))
    return {"ours_bytes": ours, "peer_bytes": peer, "memory_ratio": metrics.memory_ratio(ours, peer)}


def _figures(jobs: Sequence[PeerContest], target: str) -> dict[str, Any]:
    none = dict.fromkeys(_FIGURES, math.nan) | {"verdict": "not run", "standing": "", "jobs": 0, "rounds": 0}
    jobs = [job for job in jobs if _is_timed(job)]
    if not jobs:
        return none
    times = [(peers.steps(job.ours), peers.steps(job.peer)) for job in jobs]
    processor = [(peers.steps(job.ours, processor=True), peers.steps(job.peer, processor=True)) for job in jobs]
    pair, by_job = peers.paired(jobs), [metrics.ratio_of_medians([job]) for job in times]
    return {
        "verdict": peers.verdict(pair.interval, len(jobs)),
        "standing": peers.standing(pair.interval, len(jobs), float(target)) if target else "",
        "ratio": pair.ratio,
        "low": number(pair.low),
        "high": number(pair.high),
        "of_medians": metrics.ratio_of_medians(times),
        "of_medians_low": min(by_job),
        "of_medians_high": max(by_job),
        "processor": metrics.ratio_of_medians(processor) if all(_positive(peer) for _, peer in processor) else math.nan,
        "ours_s": float(pd.Series([s for ours, _ in times for s in ours]).median()),
        "peer_s": float(pd.Series([s for _, peer in times for s in peer]).median()),
        "jobs": len(jobs),
        "rounds": sum(map(len, peers.rounds(jobs))),
    }


def _is_timed(job: PeerContest) -> bool:
    """Say whether both sides have times, of as many rounds, that a clock can show."""
    sides = (job.ours, job.peer)
    return len(job.ours.rounds_s) == len(job.peer.rounds_s) > 0 and all(
        all(side.rounds_s) and _positive(peers.steps(side)) for side in sides
    )


def _positive(times: Sequence[float]) -> bool:
    return bool(times) and all(math.isfinite(s) and 0 < s < 1e9 for s in times)
