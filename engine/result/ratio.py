"""Schema of a ratio of times that were measured in pairs."""

from engine.result.interval import NOTHING_KNOWN, Interval
from engine.result.metrics import Paired
from engine.schema import Record


class Ratio(Record):
    """Paired ratio of times with its interval of confidence 0.95 (metrics.paired): over jobs, or over the
    rounds of the only one. low, high: None where nothing is known of it.

    Results of earlier versions have one that was bootstrapped over jobs and rounds, too narrow of few jobs.
    """

    ratio: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, found: Paired) -> "Ratio":
        """Make the ratio as JSON can hold it, which has no infinity."""
        if found.interval == NOTHING_KNOWN:
            return cls(ratio=found.ratio)
        return cls(ratio=found.ratio, low=found.interval.low, high=found.interval.high)

    @property
    def interval(self) -> Interval:
        """Give its interval from low to high."""
        return NOTHING_KNOWN if self.low is None or self.high is None else Interval(self.low, self.high)

    def __str__(self) -> str:
        """Write it for a person: 0.871 (0.862 to 0.880)."""
        span = "interval not known" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.ratio:.3f} ({span})"
