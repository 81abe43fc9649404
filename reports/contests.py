"""Contests with peers as a pandas frame, and contests of several commands as points.

Numbers that were not measured, and ones that aren't finite, are NaN; missing texts are "".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from engine.result import metrics
from engine.result.peers import Asked, ContestResult, Peaks, PeerContest, PeersResult
from reports import origin
from reports.jobs import as_others, with_moments
from reports.load import Contests
from reports.peaks import facts
from reports.text import clean

# What tells one series of contests from another, and one contest of it from another. Commands that agree in all of it
# held the same contest again: their jobs count together.
SERIES = ["system", "partition", "series", "model", "dtype", "device", "devices", "torch"]
CONTEST = [
    *(*SERIES, "peer", "layout", "grid", "ranks", "sequences", "sequence", "checkpointing", "threads", "overlap"),
    *("apart", "bf16", "target", "network"),
]
RECORDED_WHEN_HELD = ("network", "apart")
"""Only a contest that was held records these."""
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

    status: ok, failed, or missing for one that can't be held on that machine; the reason says why.
    """
    table = pd.DataFrame([row for one in found for row in _rows(one)], columns=COLUMNS)
    table = as_others(table, "devices", [key for key in SERIES if key != "devices"])
    for column in RECORDED_WHEN_HELD:
        table = as_others(table, column, [key for key in CONTEST if key not in RECORDED_WHEN_HELD])
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
        "warmup": _text(case.get("warmup")),
        "steps_per_round": _text(case.get("steps")),
        "work": result.work,
        "peaks": _peaks(result),
    }
    held = result.comparisons  # in the order of those that were asked for and can be held
    asked: tuple[Asked, ...] = result.contests or held
    missing = [(one, _not_held("missing", one.missing)) for one in asked if one.missing is not None]
    possible = [one for one in asked if one.missing is None]
    ended = [_held(one, result) for one in held]
    ended.append(_not_held("failed", result.reason or "no reason given"))  # those after it were not come to
    ended += [_not_held("failed", "not begun, as one before it failed")] * len(possible)
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


def _not_held(status: str, reason: str) -> dict[str, Any]:
    return {"status": status, "reason": clean(reason), "contests": (), "load": math.nan, "apart": ""}


def _held(contest: ContestResult, result: PeersResult) -> dict[str, Any]:
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
    return _text(options.get("checkpoint_activations")) if every in (None, 0, 1) else f"every {_text(every)}"


def _text(value: object) -> str:
    return "" if value is None else clean(str(value), 60)
