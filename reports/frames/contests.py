"""Contests with peers as a frame, one row a contest of a command, and as points: whoever ran a contest how often.

Jobs of the same contest count together.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from engine.result import metrics
from engine.result.judges import peers
from engine.result.schema.peers import PARTS, SIDES, Asked, ContestResult, Peaks, PeerContest, PeersResult, Work
from reports.frames import origin
from reports.frames.jobs import as_others, fields, with_moments
from reports.frames.tunings import changed
from reports.read.load import Contests
from reports.read.peaks import facts
from reports.text import clean, number

# What tells one series of contests from another, and one contest of it from another. Commands that agree in all of it
# ran the same contest again: their jobs count together.
SERIES = ["system", "partition", "series", "model", "dtype", "device", "devices", "torch"]
CONTEST = [
    *(*SERIES, "peer", "layout", "grid", "ranks", "sequences", "sequence", "checkpointing", "threads", "overlap"),
    *("apart", "bf16", "target", "network", "micro_batch", "peer_micro_batch", "sums"),
]
RECORDED_WHEN_RUN = ("network", "apart")
"""Only a contest that was run records these."""
UNEQUAL = "not the same for both sides"
"""Network of a contest that says nothing of equal sides."""
ONE_AFTER_THE_OTHER, AT_ONCE = "one after the other", "at once"
TOLERANCE_OF_VERSION_1 = 1e-4
COLUMNS = [
    *dict.fromkeys((*CONTEST, *origin.COLUMNS)),
    *("peer_is", "status", "reason", "contests", "compared", "losses", "norms", "tolerance", "memory_max", "load"),
    *("warmup", "steps_per_round", "work", "peaks", "does", "peer_versions", "grid_is", "settings", "of_images"),
]


def frame(found: Sequence[Contests]) -> pd.DataFrame:
    """Make one row a contest of a command; contests: a tuple of jobs, empty for one that failed or was not run.

    status: ok, failed, or missing for one that can't be run on that machine; the reason says why.
    """
    table = pd.DataFrame([row for one in found for row in _rows(one)], columns=COLUMNS)
    table = as_others(table, "devices", [key for key in SERIES if key != "devices"])
    for column in RECORDED_WHEN_RUN:
        table = as_others(table, column, [key for key in CONTEST if key not in RECORDED_WHEN_RUN])
    return with_moments(table, "start", "end")


def _rows(found: Contests) -> list[dict[str, Any]]:
    result, case = found.result, found.result.case
    model = case.get("model")
    shape = model if isinstance(model, dict) else {}
    common = {
        **origin.columns(result.labels, result.provenance, result.transport, found.source, found.remark),
        "series": clean(result.labels.get("series", "")),
        "grid_is": clean(result.labels.get("grid_is", "")),
        "model": clean(str(shape.get("name") or "")),
        "dtype": clean(result.dtype),
        "device": result.device,
        "torch": clean(result.provenance.versions.get("torch", "")),
        "sequences": _text(case.get("sequences")),
        "sequence": _text(shape.get("sequence")),
        "of_images": "image" in shape,
        "checkpointing": checkpointing(case),
        "threads": _text(case.get("threads")),
        "overlap": _overlap(case.get("overlap")),
        "bf16": _bf16(result.dtype, case),
        "micro_batch": _text(case.get("micro_batch")),
        "peer_micro_batch": _text(case.get("peer_micro_batch") or case.get("micro_batch")),
        "sums": clean(str(case.get("reduce_dtype") or result.dtype)),
        "warmup": _text(case.get("warmup")),
        "steps_per_round": _text(case.get("steps")),
        "work": result.work,
        "peaks": _peaks(result),
    }
    ran = result.comparisons  # in the order of those that were asked for and can be run
    asked: tuple[Asked, ...] = result.contests or ran
    missing = [(one, _not_run("missing", one.missing)) for one in asked if one.missing is not None]
    possible = [one for one in asked if one.missing is None]
    ended = [_run(one, result) for one in ran]
    ended.append(_not_run("failed", result.reason or "no reason given"))  # those after it were not come to
    ended += [_not_run("failed", "not begun, as one before it failed")] * len(possible)
    return [common | _asked(one) | came for one, came in [*zip(possible, ended, strict=False), *missing]]


def _peaks(result: PeersResult) -> Peaks:
    """Return the command's own, else those of the system's file."""
    own, known = result.peaks, facts(result.labels.get("system", ""), result.dtype)
    advertised, empirical = (fact.value if fact else None for fact in known)
    return own.model_copy(update={"advertised": own.advertised or advertised, "empirical": own.empirical or empirical})


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


def _not_run(status: str, reason: str) -> dict[str, Any]:
    return {"status": status, "reason": clean(reason), "contests": (), "load": math.nan, "apart": ""}


def _run(contest: ContestResult, result: PeersResult) -> dict[str, Any]:
    """Whether its sides came one after the other was an option of the whole command before memory decided it."""
    apart = contest.apart or result.case.get("apart") is True
    equality, memory = contest.equality, contest.memory
    if equality is not None:
        equal = (equality.steps, equality.losses, equality.gradient_norms, equality.tolerance)
    else:  # version 1 kept losses only
        equal = (
            min((len(job.ours.losses) for job in contest.jobs), default=0),
            max(map(_losses, contest.jobs), default=math.nan),
            math.nan,
            TOLERANCE_OF_VERSION_1,
        )
    return {
        **({"network": UNEQUAL} if contest.unequal(result.version, result.device) else {}),
        "apart": ONE_AFTER_THE_OTHER if apart else AT_ONCE,
        "status": "ok",
        "reason": "",
        "contests": contest.jobs,
        **dict(zip(("compared", "losses", "norms", "tolerance"), equal, strict=True)),
        "peer_versions": ", ".join(dict.fromkeys(_versions(job) for job in contest.jobs)),
        "memory_max": max(memory.peak_bytes_per_rank, default=math.nan) if memory else math.nan,
        "load": contest.load,
    }


def _versions(job: PeerContest) -> str:
    """Return the versions of its packages, and what it had to do without."""
    named = [f"{clean(name, 40)} {clean(version, 40)}" for name, version in sorted(job.peer.versions.items())]
    lacked = [f"without {clean(name, 60)} ({clean(needs, 200)})" for name, needs in sorted(job.peer.without.items())]
    return ", ".join(named + lacked)


def _losses(job: PeerContest) -> float:
    return metrics.curve_difference(job.ours.losses, job.peer.losses)[0]


def _overlap(flags: object) -> str:
    if not isinstance(flags, dict):
        return _text(flags)
    on = [name for name in ("oar", "ors", "oag") if flags.get(name)]
    on += [f"cache={flags['cache']}"] if flags.get("cache") else []
    return clean(",".join(on + (["data"] if flags.get("data") else [])) or "none")


def _bf16(dtype: str, case: Mapping[str, Any]) -> str:
    """Say how peers compute bf16 where they leave it to their users, "" of other formats; older files mean autocast."""
    if dtype != "bf16":
        return ""
    return "by autocast" if case.get("autocast", True) else "throughout"


def checkpointing(options: dict[str, Any]) -> str:
    """Tell apart runs by what they recompute: nothing, each block, or so many together. Old ones recomputed each."""
    every = options.get("checkpoint_every")
    found = _text(options.get("checkpoint_activations")) if every in (None, 0, 1) else f"every {_text(every)}"
    first = options.get("checkpoint_blocks")
    return found if first is None else f"{found}, first {_text(first)}"


def _text(value: object) -> str:
    return "" if value is None else clean(str(value), 60)


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
_PARTS = tuple(f"{side}_{part}_s" for side in SIDES for part in (*PARTS, "alone"))


def points(table: pd.DataFrame) -> pd.DataFrame:
    """Make one row a contest, whoever ran it how often, in the order of series, peer and grid.

    ratio, low, high: metrics.paired of all jobs; low, high are NaN where nothing is known of them. verdict: won,
    lost or undecided; standing: of the target, met, missed or undecided, "" without one. of_medians:
    metrics.ratio_of_medians, its extremes over jobs of_medians_low and _high. ours_s, peer_s: medians over all steps.
    losses, norms: the largest difference of any. changed: of how many shapes the tuner changed the products, NaN where
    nothing was tuned. jobs, rounds: of all together; failed: of how many commands it failed. NaN, and "not run", where
    no job ended well. What a side does in a second (in images where the network sees them, of_images), its shares of
    the peaks and its memory: as in engine.result.peers; memory_ratio: metrics.memory_ratio. grid_is: who chose the
    engine's grid, as the suite says it. parted: jobs that parted a side's step, whose parts are those of judges.parts;
    unparted: why others that were to part one have none.
    """
    rows = [_point(rows) for _, rows in table.groupby(CONTEST, dropna=False, sort=True)]
    columns = [
        *(*CONTEST, *_FIGURES, "peer_is", "does", "peer_versions", "grid_is", "reason", "losses", "norms", "tolerance"),
        *("compared", "memory_max", "failed", *_SPEEDS, *_BYTES, "peak_measured", "changed", "of_images"),
        *("parted", "unparted", *_PARTS),
    ]
    return pd.DataFrame(rows, columns=columns)


def over_one_network(points: pd.DataFrame) -> pd.DataFrame:
    """Select what a headline counts: contests whose sides had the same network, and those that were not run."""
    return points[(points["network"] != UNEQUAL) | (points["jobs"] == 0)]


def most_run(points: pd.DataFrame, by: Sequence[str], most: int) -> list[pd.DataFrame]:
    """Return the points, those of which the most contests were run first among points that agree in these columns."""
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
    return known | _speeds(rows, known) | _memory(jobs) | _parts(jobs)


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


def _parts(jobs: Sequence[PeerContest]) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(_PARTS, math.nan)
    for side in SIDES:
        parts = peers.parts(jobs, side)
        if parts is not None:
            found |= {f"{side}_{part}_s": getattr(parts, f"{part}_s") for part in (*PARTS, "alone")}
    parted = sum(any(getattr(job, side).parts for side in SIDES) for job in jobs)
    reasons = {getattr(job, side).unparted for job in jobs for side in SIDES} - {""}
    return found | {"parted": parted, "unparted": clean("; ".join(sorted(reasons)))}


def _figures(jobs: Sequence[PeerContest], target: str) -> dict[str, Any]:
    none = dict.fromkeys(_FIGURES, math.nan) | {"verdict": "not run", "standing": "", "jobs": 0, "rounds": 0}
    jobs = [job for job in jobs if _is_timed(job)]
    if not jobs:
        return none
    times = [(peers.steps(job.ours), peers.steps(job.peer)) for job in jobs]
    processor = [(peers.steps(job.ours, processor=True), peers.steps(job.peer, processor=True)) for job in jobs]
    pair, by_job = peers.paired(jobs), [metrics.ratio_of_medians([job]) for job in times]
    return {
        "verdict": peers.WON[peers.verdict(pair.interval, len(jobs))],
        "standing": peers.MET[peers.standing(pair.interval, len(jobs), float(target))] if target else "",
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
