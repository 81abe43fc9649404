"""Rules: which published rows a machine is fitted to, and how wide its intervals are.

All were written down before any row was predicted by them, and hold for every machine alike. A machine is fitted to two
rows of the first paper that timed it, by name: the fewest devices, and the most up to MOST_DEVICES.
So neither a row that fits badly nor a convenient one is chosen, the largest jobs of Frontier are predicted beyond the
fit, and a later paper's table of the same machine is predicted as a whole.

The interval of a row comes from the errors of rows that neither it nor its machine had a part in: of published rows
those of the other systems, of a measured grid those of the other jobs. With n such errors of the logarithm, taken to be
alike and normal about 0, the next one divided by their root mean square has Student's t distribution of n degrees of
freedom, so that nine in ten lie within its quantile. Rows of one system share part of their errors, for which this
rule makes no allowance: how often the intervals hold is counted, and printed.
"""

from collections.abc import Mapping, Sequence
from math import exp, sqrt

from engine.published import Number, select
from engine.result.gate import student
from engine.schema import Record

MOST_DEVICES = 8192
HELD = 0.9
"""Share of the rows to which nothing was fitted for which intervals are to hold."""


class PublishedSeries(Record):
    """Times of a batch that a paper has of a system."""

    source: str
    system: str
    sequences: int
    overlap: str
    """Overlap that the paper hides."""
    batch_s: dict[str, dict[int, float]]
    """By model and number of devices."""


def published_series() -> list[PublishedSeries]:
    """List the published times of our own systems, a series a paper and system; the papers print no grids."""
    series: dict[tuple[str, str], list[Number]] = {}
    for one in select(metric="time_s", highest=None):
        if one.overlap:
            series.setdefault((one.paper, one.system), []).append(one)
    return [_series(numbers) for numbers in series.values()]


def _series(numbers: Sequence[Number]) -> PublishedSeries:
    first = numbers[0]
    assert first.batch_tokens
    assert first.sequence
    batch_s: dict[str, dict[int, float]] = {}
    for one in numbers:
        batch_s.setdefault(one.model.lower(), {})[int(one.devices or 0)] = one.si
    return PublishedSeries(
        source=f"{first.paper} {first.where}: {first.note}",
        system=first.system.lower(),
        sequences=first.batch_tokens // first.sequence,
        overlap=first.overlap,
        batch_s=batch_s,
    )


def fitted_devices(series: PublishedSeries, every: Sequence[PublishedSeries]) -> tuple[int, ...]:
    """Return the numbers of devices of a series to which its machine is fitted; none of a later series of a system."""
    first = next(other for other in every if other.system == series.system)
    devices = [count for times in series.batch_s.values() for count in times if count <= MOST_DEVICES]
    return (min(devices), max(devices)) if series == first and devices else ()


def spread(errors: Sequence[float]) -> float:
    """Return the spread of a prediction by the errors of others, ln(predicted / measured): HELD of all measured times
    lie between the predicted one divided by 1 + spread and multiplied by it. Raises ValueError without errors.
    """
    if not errors:
        raise ValueError("A spread needs at least one error.")
    off = sqrt(sum(error**2 for error in errors) / len(errors))
    return exp(student(len(errors), HELD) * off) - 1


def spreads(errors: Mapping[str, Sequence[float]], otherwise: float) -> dict[str, float]:
    """Return the spread of each system, or job, by the errors of all others; `otherwise` where these have none."""
    found = {}
    for name in errors:
        others = [error for other, some in errors.items() if other != name for error in some]
        found[name] = spread(others) if others else otherwise
    return found
