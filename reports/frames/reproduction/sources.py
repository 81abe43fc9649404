"""Table of what reads the measurement of a claim: a function for each suite and figure, and of some for each kind.

Each takes what is asked of a machine and returns its sample over jobs, in the unit of the claim's kind, or None where
nothing was measured. A new claim is data; a new kind of measurement is one function and its row here.
"""

from collections.abc import Mapping

from engine.published.claims import Claim, Target
from reports.frames.reproduction import (
    accuracy,
    contests,
    curves,
    devices,
    layers,
    links,
    models,
    overlaps,
    scaling,
    tensor_modes,
)
from reports.frames.reproduction.samples import COLLECTIVES, Source

SOURCES: Mapping[tuple[str, str], Source] = {
    **{
        (study, metric): scaling.point(study, column)
        for study in ("weak_scaling", "strong_scaling")
        for metric, column in {
            **{name: name for name in ("time_s", "hardware_flops_per_s", "hfu", "of_empirical")},
            "exposed_s": "collectives_s",
        }.items()
    },
    ("weak_scaling", "compute_s"): scaling.compute,
    ("weak_scaling", "efficiency"): scaling.efficiency,
    ("weak_scaling", "ratio"): scaling.growth,
    ("strong_scaling", "solution_s"): scaling.solution,
    ("strong_scaling", "speed_up"): scaling.speed_up,
    ("strong_scaling", "efficiency"): scaling.strong_efficiency,
    ("overlap_ablation", "time_saved"): overlaps.saved,
    ("optimisations", "time_saved"): overlaps.optimised,
    ("overlap_ablation", "communication_hidden"): overlaps.less_exposed,
    ("overlap_ablation", "exposed_s"): overlaps.less_exposed,
    ("pipeline", "pipeline_s"): overlaps.fewer_stages,
    ("pipeline", "idle"): overlaps.idle,
    ("baselines", "time_saved"): contests.saved,
    ("baselines", "speed_up"): contests.speed_up,
    ("baselines", "days_saved"): contests.training_time_saved,
    ("baselines", "months_saved"): contests.training_time_saved,
    ("baselines", "time_s"): contests.faster,
    ("baselines", "efficiency"): contests.efficiency,
    ("baselines", "hfu"): contests.hfu,
    ("baselines", "exposed_s"): contests.part("exposed_s"),
    ("baselines", "compute_s"): contests.part("work_s"),
    ("baselines", "ratio"): contests.part_ratio,
    ("baselines", "tokens_per_s"): contests.tokens_per_s,
    ("model_validation", "efficient_of_10"): models.efficient(10),
    ("model_validation", "efficient_of_5"): models.efficient(5),
    ("model_validation", "place_of_fastest"): models.place_of_fastest,
    ("validation", "ratio"): curves.losses,
    ("evaluation", "ratio"): accuracy.by_epoch,
    ("peak", "empirical"): devices.empirical,
    ("peak", "share_of_advertised"): devices.share_of_advertised,
    ("peak", "ratio"): devices.counted_flops,
    ("kernel_tuning", "of_advertised"): devices.product_share,
    ("kernel_tuning", "speed_up"): devices.product_speed_up,
    ("kernel_tuning", "ratio"): devices.compute_gain,
    ("kernel_tuning", "product_s"): devices.mode_order,
    ("p2p", "message_s"): devices.message_order,
    ("p2p", "ratio"): devices.message_ratio,
    ("p2p", "all_reduce_s"): devices.all_reduce_order,
    ("tensor_modes", "images_per_s"): tensor_modes.rate,
    ("tensor_modes", "over_1d"): tensor_modes.gain,
    ("tensor_modes", "throughput_gained"): tensor_modes.gain,
    ("tensor_modes", "speed_up"): tensor_modes.largest_gain,
    ("pairs", "bandwidth"): links.of_sort,
    ("layers", "ratio"): layers.moved,
    ("layers", "memory_saved"): layers.saved,
    ("layers", "elements"): layers.moved_order,
    ("layers", "peak_bytes"): layers.memory_order,
}
ORDERS: Mapping[tuple[str, str], Source] = {
    ("weak_scaling", "hardware_flops_per_s"): scaling.lead_over_printed,
    ("pairs", "bandwidth"): links.order,
    ("tensor_modes", "images_per_s"): tensor_modes.order,
}
"""Sources of orders by a figure that numbers have too."""


def sources_of(claim: Claim, target: Target) -> list[Source]:
    """List what reads the measurement of a target; nothing does where the list is empty."""
    metric = target.readings[0].metric if target.readings else claim.by
    keys = [(one.suite, metric) for one in claim.redo]
    table = SOURCES if target.readings else {**SOURCES, **ORDERS}
    return list(dict.fromkeys(table[key] for key in keys if key in table))


def figure_of(claim: Claim, target: Target) -> str:
    """Name the figure that a target is of, in words."""
    metric = (target.readings[0].metric if target.readings else claim.by).replace("_", " ")
    at = target.comparison.at if target.comparison else ""
    return f"{metric} of {at}" if at in COLLECTIVES else metric
