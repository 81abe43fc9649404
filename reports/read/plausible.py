"""Figures of a file that no machine can have reached: such figures are in no table, and the index page names the file.

A rate above an advertised peak, a time or rate that isn't positive and finite, or a grid that isn't the number of ranks
comes of an edited file, a broken clock or an option that was mistyped. A rate above an empirical peak is none of them:
that was measured, on another night or at another clock.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from engine.grid import Grid
from engine.planning.document import GridPlan
from engine.result import metrics
from engine.result.schema import Result
from engine.result.schema.contest import GridSide
from engine.result.schema.peers import SIDES, PeersResult
from reports.read.peaks import TIMES_THE_CACHE, advertised_bandwidth, facts

POSITIVE = frozenset((
    "time_per_iteration_s", "median_time_s", "median_s", "ours_median_s", "peer_median_s", "low_s", "high_s",
    "rounds_s", "wall_s", "step_s", "tokens_per_s", "samples_per_s", "hardware_flops_per_s", "model_flops_per_s",
    "flops_per_s", "best_flops_per_s", "best_bytes_per_s", "median_bytes_per_s", "bytes_per_s",
    "peak_flops_per_device", "empirical_peak_flops_per_device",
))  # fmt: skip
"""Times and rates that are greater than 0; others, such as those of a wait, may be 0."""
MEASURED = ("_s", "_per_device", "bytes", "_bytes_per_rank", "cores", "iterations")
"""Names of times, rates and counts end so."""
SAID_OF_PLACE = frozenset({"config", "labels", "provenance", "versions"})
"""Whatever their keys are called, there are no measurements in these."""


class Rate(NamedTuple):
    """Rate of one device, and its name in a sentence."""

    value: float
    what: str


def impossible(result: Result) -> str | None:
    """Say what can't be in a result, as a clause; None where nothing is."""
    summary = result.summary
    given = summary.peak_flops_per_device if summary else None
    return (
        next(filter(None, (_of_another_size(grid, result.ranks) for grid in _grids(result))), None)
        or not_positive(result)
        or _share_above("HFU", summary.hfu if summary else None)
        or _share_above("MFU", summary.mfu if summary else None)
        or _above(_rates(result), given, result.labels, result.dtype)
        or _bandwidth_above(result)
    )


def impossible_contest(result: PeersResult) -> str | None:
    """Say what can't be in a result of contests with peers; None where nothing is."""
    wrong = not_positive(result)
    for one in (*result.contests, *result.comparisons):
        wrong = wrong or _of_another_size(one.grid, one.ranks)
    return wrong or _above(_of_contests(result), result.peaks.advertised, result.labels, result.dtype)


def impossible_plan(plan: GridPlan) -> str | None:
    """Say what can't be in a plan; None where nothing is."""
    for row in plan.rows:
        if wrong := _of_another_size(row.grid, plan.devices) or _share_above("HFU", row.hfu):
            return wrong
    return not_positive(plan)


def not_positive(record: BaseModel) -> str | None:
    """Say which time, rate or count of a record, or of one within it, isn't one; None where all are."""
    for name, value in _figures(record):
        if not math.isfinite(value) or value < 0 or (value == 0 and name in POSITIVE):
            return f"its {name} is {_written(value)}, which can't be"
    return None


def _written(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "not a number" if math.isnan(value) else "infinite"


def _grids(result: Result) -> list[str]:
    """List the grids that the ranks formed; of `bench matmul`, each is one of a grid that isn't there, as one rank of
    `bench layers` may be.
    """
    stands = result.kind == "matmul" or (result.kind == "layers" and result.ranks == 1)
    own = [result.grid] if result.grid is not None and not stands else []
    return own + [one.grid for one in result.sides(GridSide)]


def _of_another_size(grid: str, ranks: int) -> str | None:
    size = Grid.parse(grid).size
    return None if size == ranks else f"its grid {grid} is of {size} ranks, but it says that there were {ranks}"


def _share_above(what: str, share: float | None) -> str | None:
    if share is None or 0 <= share <= 1:
        return None
    return f"its {what} is {100 * share:.4g} %, but a share of the advertised peak is from 0 to 100 %"


def _rates(result: Result) -> Iterator[Rate]:
    if result.summary:
        yield Rate(result.summary.hardware_flops_per_s / result.ranks, "its rate of a device")
    if result.best_flops_per_s is not None:
        yield Rate(result.best_flops_per_s, "its best rate of a device")
    for one in (*result.gemm, *result.gemm_modes):
        if one.flops_per_s is not None:
            yield Rate(one.flops_per_s, f"its rate of products of size {one.size}")
    for shape in (*result.tuning.shapes, *result.tuning.again) if result.tuning else ():
        for way in shape.times:
            yield Rate(way.flops_per_s, f"its rate of {shape.layer} in mode {way.mode}")


def _of_contests(result: PeersResult) -> Iterator[Rate]:
    if (work := result.work) is None:
        return
    for one in result.comparisons:
        for side in SIDES:
            flops_per_s = metrics.rate(work.hardware_flops, getattr(one, f"{side}_median_s"))
            yield Rate(flops_per_s / one.ranks, f"the rate of a device ({side}, beside {one.peer})")


def _above(rates: Iterable[Rate], given: float | None, labels: Mapping[str, str], dtype: str) -> str | None:
    """Compare rates with the advertised peak, which was given to the job or is in the system's file."""
    stated = facts(labels.get("system", ""), dtype).advertised
    peak = given or (stated.value if stated else math.inf)
    for rate in rates:
        share = metrics.utilisation(rate.value, 1, peak)
        if share > 1:
            return f"{rate.what} is {100 * share:.4g} % of the advertised peak, which can't be reached"
    return None


def _bandwidth_above(result: Result) -> str | None:
    known, stream = advertised_bandwidth(result.labels.get("system", "")), result.stream
    if known is None or stream is None or stream.array_bytes < TIMES_THE_CACHE * (stream.cache_bytes or 0):
        return None
    for one in stream.kernels:
        share = metrics.of_advertised_bandwidth(one.best_bytes_per_s, known.value)
        if share > 1:
            return f"its bandwidth of {one.name} is {100 * share:.4g} % of the advertised one, which can't be reached"
    return None


def _figures(found: object, name: str = "") -> Iterator[tuple[str, float]]:
    """List all times and rates, by the keys that say their unit."""
    if isinstance(found, BaseModel):
        for key in type(found).model_fields:
            if key not in SAID_OF_PLACE:
                yield from _figures(getattr(found, key), key)
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from _figures(value, name)
    elif isinstance(found, tuple | list):
        for value in found:
            yield from _figures(value, name)
    elif isinstance(found, float | int) and not isinstance(found, bool) and name.endswith(MEASURED):
        yield name, found
