"""Which steps of a training count."""

from collections.abc import Mapping
from typing import Any


def counted_times_s(record: Mapping[str, Any]) -> list[float]:
    """Of a result's record: seconds of its steps, but for those of the warm-up and those that were profiled."""
    return [float(one["time_s"]) for one in record["iterations"] if not (one["warmup"] or one.get("profiled"))]
