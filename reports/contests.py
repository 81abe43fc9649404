"""Contests with peers as a pandas frame, and contests of several commands as points.

Numbers that were not measured, and ones that aren't finite, are NaN; missing texts are "".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from engine.result import metrics
from engine.result.peers import (
    NO_ROAD,
    Asked,
    Compared,
    Measured,
    Peaks,
    PeersResult,
    Work,
    is_equal,
    paired,
    peak_bytes,
    rounds,
    speed,
    standing,
    steps,
    verdict,
)
from reports.filled import as_others
from reports.load import Contests
from reports.page import NOT_RECORDED
from reports.peaks import facts
from reports.text import clean, number
from reports.transports import network, words
from reports.tunings import changed

# What tells one series of contests from another, and one contest of it from another. Commands that agree in all of it
# held the same contest again: their jobs count together.
SERIES = ["system", "partition", "series", "model", "dtype", "device", "devices", "torch"]
CONTEST = [
    *(
        *SERIES,
        "peer",
        "layout",
        "grid",
        "ranks",
        "sequences",
        "sequence",
        "checkpointing",
        "threads",
        "overlap",
        "apart",
        "bf16",
    ),
    *("target", "network", "road"),
]
RECORDED_WHEN_HELD = ("network", "road", "apart")
"""What only a contest that was held records."""
ONE_AFTER_THE_OTHER, AT_ONCE = "one after the other", "at once"
TOLERANCE_OF_VERSION_1 = 1e-4
COLUMNS = [
    *CONTEST, "peer_is", "status", "reason", "study", "measured", "compared", "losses", "norms", "tolerance",
    "memory_max", "load", "warmup", "steps_per_round", "versions", "hosts", "launcher", "commit", "dirty", "start",
    "end", "source", "transport", "remark", "work", "peaks", "does", "peer_versions",
    "grid_is", "settings",
]  # fmt: skip


def frame(found: Sequence[Contests]) -> pd.DataFrame:
    """One row a contest of a command; measured: a tuple of jobs, empty for one that failed or was not held.

    status: ok, failed, or missing for one that can't be held on that machine; the reason says why.
    """
    table = pd.DataFrame([row for one in found for row in _rows(one)], columns=COLUMNS)
    table = as_others(table, "devices", [key for key in SERIES if key != "devices"])
    for column in RECORDED_WHEN_HELD:
        table = as_others(table, column, [key for key in CONTEST if key not in RECORDED_WHEN_HELD])
    for column in ("start", "end"):
        table[column] = pd.to_datetime(table[column], errors="coerce", utc=True, format="ISO8601")
    return table


def _rows(found: Contests) -> list[dict[str, Any]]:
    result, case, origin = found.result, found.result.case, found.result.provenance
    model = case.get("model")
    shape = model if isinstance(model, dict) else {}
    common = {
        "system": clean(result.labels.get("system", "")),
        "partition": clean(result.labels.get("partition", "")),
        "series": clean(result.labels.get("series", "")),
        "study": clean(result.labels.get("study", "")),
        "grid_is": clean(result.labels.get("grid_is", "")),
        "model": clean(str(shape.get("name") or "")),
        "dtype": clean(result.dtype),
        "device": result.device,
        "devices": clean(", ".join(dict.fromkeys(origin.devices)), 120),
        "torch": clean(origin.versions.get("torch", "")),
        "sequences": _text(case.get("sequences")),
        "sequence": _text(shape.get("sequence")),
        "checkpointing": _text(case.get("checkpoint_activations")),
        "threads": _text(case.get("threads")),
        "overlap": _overlap(case.get("overlap")),
        "bf16": _bf16(result.dtype, case),
        "warmup": _text(case.get("warmup")),
        "steps_per_round": _text(case.get("steps")),
        "versions": clean(", ".join(f"{name} {version}" for name, version in sorted(origin.versions.items()))),
        "hosts": clean(", ".join(dict.fromkeys(origin.hosts)), 120),
        "launcher": clean(origin.launcher),
        "commit": clean(origin.git_commit or ""),
        "dirty": {True: "modified", False: "clean", None: "unknown"}[origin.git_dirty],
        "start": origin.start,
        "end": origin.end,
        "source": clean(found.source, 4000),
        "network": network(result.transport),
        "transport": words(result.transport),
        "remark": found.remark,
        "work": result.work,
        "peaks": _peaks(result),
    }
    held = result.comparisons  # in the order of those that were asked for and can be held
    asked: tuple[Asked, ...] = result.contests or held
    missing = [_asked(contest) | _missing(contest.missing) for contest in asked if contest.missing is not None]
    possible = [contest for contest in asked if contest.missing is None]
    others = [
        _asked(contest) | (_held(held[place], result) if place < len(held) else _not_held(result, place - len(held)))
        for place, contest in enumerate(possible)
    ]
    return [common | one for one in others + missing]


def _peaks(result: PeersResult) -> Peaks:
    """The command's own, else those of the system's file."""
    known = facts(result.labels.get("system", ""), result.dtype)
    own = result.peaks
    return Peaks(
        advertised=own.advertised or (known.advertised.flops_per_s if known.advertised else None),
        empirical=own.empirical or (known.empirical.flops_per_s if known.empirical else None),
        measured=own.measured,
    )


def _asked(contest: Asked) -> dict[str, Any]:
    return {
        "peer": clean(contest.peer, 60),
        "peer_is": clean(contest.peer_is),
        "layout": clean(contest.layout or "", 60),
        "does": clean(contest.does),
        "settings": contest.settings,
        "peer_versions": "",
        "grid": clean(contest.grid),
        "ranks": contest.ranks,
        "target": "" if contest.target is None else f"{contest.target:.4g}",
    }


def _missing(reason: str) -> dict[str, Any]:
    return {"status": "missing", "reason": clean(reason), "measured": (), "load": math.nan, "road": "", "apart": ""}


def _not_held(result: PeersResult, after: int) -> dict[str, Any]:
    """The first that is missing failed; those after it were not come to."""
    reason = "not begun, as one before it failed" if after else clean(result.reason or "no reason given")
    return {"status": "failed", "reason": reason, "measured": (), "load": math.nan, "road": "", "apart": ""}


def _held(contest: Compared, result: PeersResult) -> dict[str, Any]:
    """Before roads were counted NCCL carried all on GPUs; on processors nobody knows. Whether its sides came one after
    the other was an option of the whole command before memory decided it.
    """
    device, apart = result.device, contest.apart or result.case.get("apart") is True
    equality, memory = contest.equality, contest.memory
    if equality is not None:
        equal = (equality.steps, equality.losses, equality.gradient_norms, equality.tolerance)
    else:  # version 1 kept losses only
        equal = (
            min((len(job.ours.losses) for job in contest.measured), default=0),
            max(map(_losses, contest.measured), default=math.nan),
            math.nan,
            TOLERANCE_OF_VERSION_1,
        )
    return {
        "road": clean(contest.road or (NO_ROAD if contest.ranks == 1 else "nccl" if device == "cuda" else ""), 40),
        "apart": ONE_AFTER_THE_OTHER if apart else AT_ONCE,
        "status": "ok",
        "reason": "",
        "measured": contest.measured,
        **dict(zip(("compared", "losses", "norms", "tolerance"), equal, strict=True)),
        "peer_versions": ", ".join(dict.fromkeys(_versions(job) for job in contest.measured)),
        "memory_max": max(memory.peak_bytes_per_rank, default=math.nan) if memory else math.nan,
        "load": contest.load,
    }


def _versions(job: Measured) -> str:
    """Of its packages, and what it had to do without."""
    named = [f"{clean(name, 40)} {clean(version, 40)}" for name, version in sorted(job.peer.versions.items())]
    lacked = [f"without {clean(name, 60)} ({clean(needs, 200)})" for name, needs in sorted(job.peer.without.items())]
    return ", ".join(named + lacked)


def _losses(job: Measured) -> float:
    return metrics.curve_difference(job.ours.losses, job.peer.losses)[0]


def points(table: pd.DataFrame) -> pd.DataFrame:
    """One row a contest, whoever held it how often, in the order of series, peer and grid.

    ratio, low, high: metrics.paired of all jobs; low, high are NaN where nothing is known of them. verdict: won,
    lost or undecided; standing: of the target, met, missed or undecided, "" without one. of_medians:
    metrics.ratio_of_medians, its extremes over jobs of_medians_low and _high. ours_s, peer_s: medians over all steps.
    losses, norms: the largest difference of any. changed: of how many shapes the tuner changed the products, NaN where
    nothing was tuned. jobs, rounds: of all together; failed: of how many commands it failed. NaN, and "not held", where
    no job ended well. What a side does in a second, its shares of the peaks and its memory: as in engine.result.peers;
    memory_ratio: metrics.memory_ratio. beside: the ratio of the same contest over its other roads, in words. grid_is:
    who chose the engine's grid, as the suite says it.
    """
    rows = [_point(rows) for _, rows in table.groupby(CONTEST, dropna=False, sort=True)]
    columns = [
        *CONTEST,
        *_FIGURES,
        "peer_is",
        "does",
        "peer_versions",
        "grid_is",
        "reason",
        "losses",
        "norms",
        "tolerance",
        "compared",
        "memory_max",
        "failed",
        *_SPEEDS,
        *_BYTES,
        "peak_measured",
        "changed",
    ]
    return _beside(pd.DataFrame(rows, columns=columns))


def over_equal_roads(points: pd.DataFrame) -> pd.DataFrame:
    """Those of points that a headline counts; contests that were not held are among them."""
    return points[points["road"].map(is_equal) | (points["jobs"] == 0)]


def _beside(points: pd.DataFrame) -> pd.DataFrame:
    same = [key for key in CONTEST if key not in ("road", "network")]
    found = dict.fromkeys(points.index, "")
    for _, rows in points[points["jobs"] > 0].groupby(same, dropna=False):
        words = {place: f"{row['road'] or NOT_RECORDED} {row['ratio']:.3f}" for place, row in rows.iterrows()}
        found |= {place: ", ".join(words[other] for other in words if other != place) for place in words}
    return points.assign(beside=pd.Series(found, dtype=object))


_FIGURES = (
    "verdict", "standing", "ratio", "low", "high", "of_medians", "of_medians_low", "of_medians_high", "processor",
    "ours_s", "peer_s", "jobs", "rounds",
)  # fmt: skip


_SPEEDS = tuple(
    f"{side}_{name}" for side in ("ours", "peer") for name in ("tokens_per_s", "mfu", "hfu", "of_empirical")
)
_BYTES = ("ours_bytes", "peer_bytes", "memory_ratio")


def _point(rows: pd.DataFrame) -> dict[str, Any]:
    last = rows.sort_values("end", kind="stable").iloc[-1]
    jobs = [job for measured in rows["measured"] for job in measured]
    known = {key: last[key] for key in (*CONTEST, "peer_is", "tolerance", "does", "peer_versions", "grid_is")}
    known |= {key: rows[key].max() for key in ("losses", "norms", "memory_max")} | {"compared": rows["compared"].min()}
    known["failed"] = int((rows["status"] == "failed").sum())
    known["reason"] = "; ".join(sorted(set(rows["reason"]) - {""}))
    known["changed"] = max((sum(map(changed, job.tuning.shapes)) for job in jobs if job.tuning), default=math.nan)
    known |= _figures(jobs, known["target"])
    return known | _speeds(rows, known) | _memory(jobs)


def _speeds(rows: pd.DataFrame, point: Mapping[str, Any]) -> dict[str, Any]:
    """Of both sides, at their median steps; the highest peak that any job knew makes the shares smaller."""
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
        found = speed(works[-1], best, point["ranks"], point[f"{side}_s"])
        shares = {"tokens_per_s": found.tokens_per_s, "mfu": found.mfu, "hfu": found.hfu}
        shares |= {"of_empirical": found.of_empirical}
        speeds |= {f"{side}_{name}": math.nan if value is None else value for name, value in shares.items()}
    return speeds


def _memory(jobs: Sequence[Measured]) -> dict[str, float]:
    ours, peer = (math.nan if taken is None or taken <= 0 else float(taken) for taken in peak_bytes(jobs))
    return {"ours_bytes": ours, "peer_bytes": peer, "memory_ratio": metrics.memory_ratio(ours, peer)}


def _figures(jobs: Sequence[Measured], target: str) -> dict[str, Any]:
    none = dict.fromkeys(_FIGURES, math.nan) | {"verdict": "not held", "standing": "", "jobs": 0, "rounds": 0}
    jobs = [job for job in jobs if _is_timed(job)]
    if not jobs:
        return none
    times = [(steps(job.ours), steps(job.peer)) for job in jobs]
    processor = [(steps(job.ours, processor=True), steps(job.peer, processor=True)) for job in jobs]
    pair, by_job = paired(jobs), [metrics.ratio_of_medians([job]) for job in times]
    return {
        "verdict": verdict(pair.interval, len(jobs)),
        "standing": standing(pair.interval, len(jobs), float(target)) if target else "",
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
        "rounds": sum(map(len, rounds(jobs))),
    }


def _is_timed(job: Measured) -> bool:
    """Whether both sides have times, of as many rounds, that a clock can show."""
    sides = (job.ours, job.peer)
    return len(job.ours.wall_s) == len(job.peer.wall_s) > 0 and all(
        all(side.wall_s) and _positive(steps(side)) for side in sides
    )


def _positive(times: Sequence[float]) -> bool:
    return bool(times) and all(math.isfinite(s) and 0 < s < 1e9 for s in times)


def _overlap(flags: object) -> str:
    """Of the engine: the flags that are on, as --overlap takes them."""
    if not isinstance(flags, dict):
        return _text(flags)
    on = [name for name in ("oar", "ors", "oag") if flags.get(name)]
    on += [f"cache={flags['cache']}"] if flags.get("cache") else []
    return clean(",".join(on + (["data"] if flags.get("data") else [])) or "none")


def _bf16(dtype: str, case: Mapping[str, Any]) -> str:
    """Of peers that leave it to their users, "" of other formats. Files that don't tell are of when it was autocast."""
    if dtype != "bf16":
        return ""
    return "by autocast" if case.get("autocast", True) else "throughout"


def _text(value: object) -> str:
    return "" if value is None else clean(str(value), 60)
