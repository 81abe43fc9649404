"""A night's verdicts for programs: as JSON, and as OpenMetrics."""

import json
import math
from collections.abc import Iterable
from typing import Any

from reports.nights.episodes import Episode
from reports.nights.judge import Verdict
from reports.nights.nodes import describe
from reports.nights.report import NightReport

SCHEMA, VERSION = "par4d.nights", 2


def as_json(*nights: NightReport) -> str:
    """Write nights, oldest first, and all episodes as known after the last one."""
    last = nights[-1:]
    known = [episode_data(night, episode) for night in last for episode in night.episodes]
    data = {"schema": SCHEMA, "version": VERSION, "nights": [_night(night) for night in nights], "episodes": known}
    return json.dumps(data, indent=1) + "\n"


def as_openmetrics(*nights: NightReport) -> str:
    """Write nights for a site's own monitoring."""
    from reports.openmetrics import of_nights  # with prometheus_client, which nothing else here takes

    return of_nights(nights)


def _night(one: NightReport) -> dict[str, Any]:
    return {
        **{"system": one.system, "night": one.night.name, "began": one.night.began.isoformat(), "code": one.code},
        "headline": one.headline,
        **{"opened": _numbers(one.opened), "open": _numbers(one.still_open), "over": _numbers(one.over)},
        "verdicts": [_verdict(one, verdict) for verdict in one.verdicts],
        **{"recurring": list(one.recurring), "remarks": list(one.remarks)},
    }


def _numbers(episodes: Iterable[Episode]) -> list[int]:
    return [episode.number for episode in episodes]


def episode_data(night: NightReport, one: Episode) -> dict[str, Any]:
    """Return what is known of an episode after a night."""
    nights, (a_month, low, high) = night.judged.nights, one.a_month
    return {
        "episode": one.number,
        **{name: nights[at].name for name, at in (("since", one.since), ("found", one.found))},
        "ended": None if one.ended is None else nights[one.ended].name,
        **{"state": one.state, "size": one.sizes[0]},
        "shape": {"kind": one.shape.kind, "a_month": a_month, "low": low, "high": high},
        "figures": [
            {"test": night.named(figure.key), "figure": figure.figure, "size": size}
            for figure, size in zip(one.figures, one.sizes, strict=True)
        ],
        **{"part": one.part, "nodes": describe(one.nodes), "changed": list(one.changed), "said": night.tell(one)},
    }


def _verdict(night: NightReport, verdict: Verdict) -> dict[str, Any]:
    numbers = {name: getattr(verdict, name) for name in ("value", "usual", "change", "low", "high", "drift")}
    return {
        **{"test": night.named(verdict.key), "figure": verdict.figure, "unit": verdict.unit, "verdict": verdict.word},
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        **{"jobs": verdict.jobs, "far": verdict.far, "reason": verdict.reason},
        "episode": episode.number if (episode := night.episode_of(verdict)) else None,
    }
