"""Every derived figure, computed here and nowhere else: the engine writes them, suites and reports ask for them.

Each function is one figure. Its formula is written in the names of its parameters, and its docstring says what is
counted, what not and how it is measured: the report's page of methods prints both. No torch, no pandas.
"""

from engine.result.definition import Definition
from engine.result.metrics import device, energy, overlap, planning, products, training, turns
from engine.result.metrics.device import (
    gemm_rate,
    memory_bandwidth,
    mode_rate,
    of_advertised_bandwidth,
    of_planned_memory,
    per_operator,
    ring_bandwidth,
)
from engine.result.metrics.energy import (
    flops_per_joule,
    joules_per_iteration,
    mean_power,
    tokens_per_joule,
)
from engine.result.metrics.overlap import (
    bound,
    bound_on_shared_cores,
    saved,
    share_hidden,
    share_of_greatest_gain,
    speed_up,
    step_by_bound,
    trace_by_record,
)
from engine.result.metrics.planning import (
    mean_absolute_error,
    median_absolute_error,
    of_device_memory,
    prediction_error,
    spearman,
)
from engine.result.metrics.products import choices_that_hold, product_rate
from engine.result.metrics.training import (
    curve_difference,
    device_hours,
    efficiency,
    faster_half,
    over_published,
    per_device,
    rate,
    relative_difference,
    share_of_step,
    time_per_iteration,
    time_to_solution,
    utilisation,
)
from engine.result.metrics.turns import (
    Paired,
    memory_ratio,
    paired,
    paired_ratio,
    ratio_of_medians,
    ratio_over_jobs,
)

__all__ = [
    "Paired",
    "bound",
    "bound_on_shared_cores",
    "choices_that_hold",
    "curve_difference",
    "device_hours",
    "efficiency",
    "faster_half",
    "flops_per_joule",
    "gemm_rate",
    "joules_per_iteration",
    "mean_absolute_error",
    "mean_power",
    "median_absolute_error",
    "memory_bandwidth",
    "memory_ratio",
    "mode_rate",
    "of_advertised_bandwidth",
    "of_device_memory",
    "of_planned_memory",
    "over_published",
    "paired",
    "paired_ratio",
    "per_device",
    "per_operator",
    "prediction_error",
    "product_rate",
    "rate",
    "ratio_of_medians",
    "ratio_over_jobs",
    "relative_difference",
    "ring_bandwidth",
    "saved",
    "share_hidden",
    "share_of_greatest_gain",
    "share_of_step",
    "spearman",
    "speed_up",
    "step_by_bound",
    "time_per_iteration",
    "time_to_solution",
    "tokens_per_joule",
    "trace_by_record",
    "utilisation",
]

DEFINITIONS: tuple[Definition, ...] = tuple(
    found
    for file in (training, device, products, overlap, turns, energy, planning)
    for value in vars(file).values()
    if isinstance(found := getattr(value, "definition", None), Definition)
)
"""Of every figure, in the order of the page."""
