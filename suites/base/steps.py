"""Some steps of a training count: neither those of the warm-up, nor those that were profiled."""

from collections.abc import Mapping
from typing import Any


def counted_times_s(record: Mapping[str, Any]) -> list[float]:
    """Return the seconds of the steps that count, in a result's record."""
    return [float(one["time_s"]) for one in record["iterations"] if not (one["warmup"] or one.get("profiled"))]
