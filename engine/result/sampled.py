"""What is measured by samples has the same figures, whatever it is."""

from engine.schema import Record


class Sampled(Record):
    """It has the seconds of a call: the median of so many samples, the least and the most. calls: of one sample, one
    after another, over which its time is divided.
    """

    samples: int
    calls: int
    median_s: float
    low_s: float
    high_s: float
