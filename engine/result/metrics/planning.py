"""What is predicted, and how good a prediction is."""

from collections.abc import Sequence
from statistics import correlation, median

from engine.result.definition import figure


@figure("Memory by that of a device", "planned_bytes / device_bytes")
def of_device_memory(planned_bytes: float, device_bytes: float) -> float:
    """It divides what the formulas give for the fullest moment of a step by all that a device has."""
    return planned_bytes / device_bytes


@figure("Error of a prediction", "predicted_s / measured_s - 1")
def prediction_error(predicted_s: float, measured_s: float) -> float:
    """It is a simulated time's error, relative to the measured or published one: above 0 where more was predicted."""
    return predicted_s / measured_s - 1


@figure("Mean absolute error", "sum(abs(error) for error in errors) / len(errors)")
def mean_absolute_error(errors: Sequence[float]) -> float:
    """It is the mean error of several predictions, without those that a machine's numbers were fitted to."""
    return sum(abs(error) for error in errors) / len(errors)


@figure("Median absolute error", "median(abs(error) for error in errors)")
def median_absolute_error(errors: Sequence[float]) -> float:
    """It is the median of the same errors, which a few grids that are far off don't move."""
    return median(abs(error) for error in errors)


@figure("Rank correlation (Spearman)", "correlation([a for a, _ in places], [b for _, b in places])")
def spearman(places: Sequence[tuple[float, float]]) -> float:
    """It compares the order of all grids as predicted and as measured: 1 where they are the same, -1 where one is the
    other turned round, and 0 where one tells nothing apart. places: of each grid in both orders; grids that one of them
    doesn't tell apart share the mean of their places.
    """
    if min(len(set(order)) for order in zip(*places, strict=True)) == 1:
        return 0.0
    return correlation([a for a, _ in places], [b for _, b in places])


@figure("Time lost by an order", "first_s / fastest_s - 1")
def lost_by_order(first_s: float, fastest_s: float) -> float:
    """It is by what part the measured time of the grid that an order puts first, the mean of several that it doesn't
    tell apart, exceeds that of the fastest.
    """
    return first_s / fastest_s - 1
