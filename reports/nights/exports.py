"""A night's verdicts for programs: as JSON, and as OpenMetrics."""

import json
import math
from collections.abc import Sequence
from typing import Any

from reports.nights.judge import Verdict
from reports.nights.report import NightReport

SCHEMA, VERSION = "par4d.nights", 1


def as_data(nights: Sequence[NightReport]) -> dict[str, Any]:
    """Return nights as JSON has them, oldest first."""
    return {"schema": SCHEMA, "version": VERSION, "nights": [_night(one) for one in nights]}


def as_json(night: NightReport) -> str:
    """Write one night."""
    return json.dumps(as_data([night]), indent=1) + "\n"


def as_openmetrics(nights: Sequence[NightReport]) -> str:
    """Write nights as OpenMetrics."""
    from reports.openmetrics import of_nights  # with prometheus_client, which nothing else here takes

    return of_nights(nights)


def night_as_openmetrics(night: NightReport) -> str:
    """Write one night as OpenMetrics."""
    return as_openmetrics([night])


def _night(one: NightReport) -> dict[str, Any]:
    return {
        **{"system": one.system, "night": one.night.name, "began": one.night.began.isoformat(), "code": one.code},
        "headline": one.headline,
        "verdicts": [_verdict(one, verdict) for verdict in one.verdicts],
        "remarks": list(one.remarks),
    }


def _verdict(night: NightReport, verdict: Verdict) -> dict[str, Any]:
    numbers = {name: getattr(verdict, name) for name in ("value", "usual", "change", "low", "high", "drift")}
    return {
        **{"test": night.named(verdict.key), "figure": verdict.figure, "unit": verdict.unit, "verdict": verdict.word},
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        **{"jobs": verdict.jobs, "far": verdict.far, "reason": verdict.reason},
        "alarm": night.alarms.get((verdict.key, verdict.figure)) if verdict.alarm else None,
    }
