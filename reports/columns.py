"""Every column that tables of the report share: its title, how a value is written, and what stands where there is none.

A table names its columns by the keys of its frame; a title or a missing value of its own it gives beside them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from engine.result.gate import CONFIDENCE
from reports import text
from reports.page import NOT_MEASURED, NOT_RECORDED, Column, Table

INTERVALS = (
    f"An interval (confidence {CONFIDENCE:g}) is over jobs, by Student's t of their logarithms. That of a single job "
    "is over its rounds, speaks of that job alone, and takes six of them."
)
"""How every interval of the report is made."""
NO_PEAK = "no peak known"
NO_BASE = "no run without overlap"
NO_SERIAL = "no serial run"
NOT_PRINTED = "not printed"
NOT_KNOWN = "not known"
_NONE: Mapping[str, str] = MappingProxyType({})


def _texts(missing: str = NOT_MEASURED, **titles: str) -> dict[str, Column]:
    return {key: Column(title, key, numeric=False, missing=missing) for key, title in titles.items()}


def _numbers(
    write: Callable[[Any], str],
    missing: str = NOT_MEASURED,
    figure: str = "",
    level: float | None = None,
    **titles: str,
) -> dict[str, Column]:
    """Columns with a level have an interval, whose ends are in KEY_low and KEY_high."""
    made = {key: Column(title, key, write, missing=missing, figure=figure) for key, title in titles.items()}
    if level is None:
        return made
    return {key: replace(one, spread=(f"{key}_low", f"{key}_high"), level=level) for key, one in made.items()}


KNOWN = {
    **_texts(grid="Grid", kind="Kind", status="Status", dtype="Number format", hides="Overlap", share="Jobs"),
    **_texts(kernel="Kernel", mode="Mode", way="A tiny operator", words="Where", framework="Framework"),
    **_texts(peer="Peer", peer_is="which is", verdict="Outcome", name="Setting", cpu="On processors", cuda="On GPUs"),
    **_texts(component="Component", scope="What is counted", finding="What", outcome="Outcome", dirty="Working tree"),
    **_texts(layer="First layer", choice="Chosen", meaning="Means", order="Order", paper="Source", side="Side"),
    **_texts(night="Since the night", figure="Figure", spread="Range, s", metric="Peak"),
    **_texts(device="Device", gained="With", over="Instead of", source="Result", setting="Where", test="Test"),
    **_texts("unnamed", system="System"),
    **_texts("unknown", model="Model", models="Models", threads="Threads", sequences="Sequences", sequence="of tokens"),
    **_texts("unknown", checkpointing="Checkpointing", warmup="Warm-up steps", steps_per_round="Steps a round"),
    **_texts("unknown", hosts="Hosts", devices="Device", versions="Versions"),
    **_texts("none", partition="Partition", variant="Variant", study="Study", launcher="Launcher", target="Target"),
    **_texts("none", axis="Axis", bf16="Peer's bf16", precision="Precision"),
    **_texts("no", fitted_words="Fitted", shared="Ranks that share cores", crowded="No core left for collectives"),
    **_texts("no", traced="Traced", remark="Test failed later"),
    **_texts("nothing known against it", binding="Binding"),
    **_texts("", standing="which is", apart="Sides", needs="if there is", lies="The prediction lies"),
    **_texts("", note="Remark", skipped="Skipped because", unmeasured="Not measured because", seen="Seen"),
    **_texts("that of our grid", layout="Its layout"),
    **_texts("the engine's torch", peer_versions="Versions"),
    **_texts("timed once", holds="Holds"),
    **_texts("not predicted", predicted="Predicted"),
    **_texts("not judged", want="Wanted"),
    **_texts("nothing that is recorded", updated="What changed then"),
    **_texts("no reason given", reason="Reason", why="Why"),
    **_texts(NO_PEAK, empirical_from="which is"),
    **_texts(NOT_PRINTED, published="Published"),
    **_texts(NOT_RECORDED, overlap="Overlap", batch_size="Batch", network="Network", grid_is="which was"),
    **_texts(NOT_RECORDED, bound_by="Bound by", transport="Network"),
    **_texts(does="Laid out", what="What", asked="Plan"),
    **_numbers(text.moment, "unknown", start="Start", end="End", written="Written"),
    **_numbers(text.count, ranks="Devices", jobs="Jobs", rounds="Rounds", repeats="Repeats", compared="Steps compared"),
    **_numbers(text.count, size="Size", operators="In a row", samples="Samples", micro_batch="Micro-batch"),
    **_numbers(text.count, place="Place", place_by_equations="by Eq. 1 to 7", place_agnostic="without placement"),
    **_numbers(text.count, place_of_fastest="Its place for the fastest"),
    **_numbers(text.count, ring="G1", groups="Rings at once", commits="Commits", calls="Calls", counters="Counters"),
    **_numbers(text.count, machines="On nodes", layers="Layers", forwards="Forwards", changed="Shapes changed"),
    **_numbers(text.count, "unknown", nodes="Nodes"),
    **_numbers(text.count, NOT_RECORDED, cached_blocks="Blocks cached"),
    **_numbers(text.count, figure="device_hours", device_hours="Device-hours"),
    **_numbers(text.seconds, ours_s="Our step", peer_s="Peer's step", median_time_s="Time", measured_s="Measured"),
    **_numbers(text.seconds, measured_exposed_s="Exposed, measured", exposed_s="Exposed, predicted"),
    **_numbers(text.seconds, equations_s="By Eq. 1 to 7", agnostic_s="Without placement", as_run_s="as a run has it"),
    **_numbers(text.seconds, time_s_published="Published", baseline_s="Baseline", compute_s="Compute"),
    **_numbers(text.seconds, flight_s="In flight, summed", collectives_s="Exposed communication"),
    **_numbers(text.seconds, seconds="Measured for", own_s="PyTorch's own", chosen_s="As chosen"),
    **_numbers(text.seconds, best_s="Fastest ways"),
    **_numbers(text.seconds, "counted", sample_s="Power sampled every"),
    **_numbers(text.seconds, "none", axis_s="Exposed there"),
    **_numbers(text.seconds, NOT_RECORDED, hidden_s="Hidden", blocking_s="Blocking"),
    **_numbers(text.seconds, NOT_RECORDED, "bound", bound_s="Bound"),
    **_numbers(text.seconds, NOT_RECORDED, "bound_on_shared_cores", processors_s="Processor seconds over cores"),
    **_numbers(text.seconds, figure="per_operator", launch_s="Median", low_s="5th percentile"),
    **_numbers(text.seconds, figure="per_operator", high_s="95th percentile"),
    **_numbers(text.seconds, NO_BASE, "time_per_iteration", none_s="Without overlap"),
    **_numbers(text.seconds, figure="time_per_iteration", time_s="Time per batch"),
    **_numbers(text.duration, figure="time_to_solution", solution_s="Time to solution"),
    **_numbers(text.duration, solution_s_published="Published"),
    **_numbers(text.flops, figure="gemm_rate", flops_per_s="Rate of a rank", best_flops_per_s="Best rate of a rank"),
    **_numbers(text.flops, figure="gemm_rate", flops_per_s_low="Lowest job", flops_per_s_high="Highest job"),
    **_numbers(text.flops, figure="rate", hardware_flops_per_s="Sustained"),
    **_numbers(text.rate, figure="memory_bandwidth", bytes_per_s="Best of a rank", bytes_per_s_low="Lowest job"),
    **_numbers(text.rate, figure="memory_bandwidth", bytes_per_s_high="Highest job"),
    **_numbers(text.rate, figure="memory_bandwidth", median_bytes_per_s="Median of a rank"),
    **_numbers(text.rate, figure="ring_bandwidth", ring_bytes_per_s="Bandwidth"),
    **_numbers(text.significant, figure="rate", ours_tokens_per_s="Tokens/s, ours", peer_tokens_per_s="peer's"),
    **_numbers(text.significant, figure="rate", ours_images_per_s="Images/s, ours", peer_images_per_s="peer's"),
    **_numbers(text.significant, figure="rate", tokens_per_s="Tokens/s"),
    **_numbers(text.significant, NOT_MEASURED, "tokens_per_joule", math.nan, per_joule="Tokens per joule"),
    **_numbers(text.joules, figure="joules_per_iteration", joules_per_iteration="Per iteration"),
    **_numbers(text.watts, figure="mean_power", power_w="Mean power"),
    **_numbers(text.flops_per_joule, figure="flops_per_joule", flops_per_joule="Model flops per joule"),
    **_numbers(lambda value: text.si(value, ""), tokens="Tokens"),
    **_numbers(lambda value: f"{value:.1f}", load="Load before"),
    **_numbers(lambda value: f"{value:.3f}", figure="spearman", spearman="Rank correlation"),
    **_numbers(lambda value: f"{value:.5f}", NO_SERIAL, serial_loss="Last loss, serial", loss="Last loss, 4D"),
    **_numbers(text.memory, ours_bytes="Memory, ours", peer_bytes="peer's", memory_bytes="Memory per device"),
    **_numbers(text.memory, memory_max="Peak memory, fullest rank", memory_min="emptiest rank"),
    **_numbers(text.memory, NOT_RECORDED, prefetch_bytes="Gathered ahead", cache_bytes="In the cache"),
    **_numbers(text.size, array_bytes="An array", message_bytes="Largest message", bytes="Bytes"),
    **_numbers(text.percent, NO_PEAK, "utilisation", hfu="HFU", mfu="MFU"),
    **_numbers(text.of_empirical, NO_PEAK, "utilisation", of_empirical="Of empirical peak"),
    **_numbers(text.percent, NO_PEAK, "utilisation", ours_mfu="MFU, ours", peer_mfu="peer's"),
    **_numbers(text.percent, NO_PEAK, "utilisation", ours_hfu="HFU, ours", peer_hfu="its"),
    **_numbers(text.of_empirical, NO_PEAK, "utilisation", ours_of_empirical="Of empirical peak, ours"),
    **_numbers(text.of_empirical, NO_PEAK, "utilisation", peer_of_empirical="its"),
    **_numbers(text.percent, figure="efficiency", efficiency="Efficiency"),
    **_numbers(text.percent, figure="efficiency", efficiency_published="Published, from these times"),
    **_numbers(text.percent, figure="of_device_memory", of_device="of the device"),
    **_numbers(text.percent, NOT_RECORDED, "share_hidden", share_hidden="Share hidden"),
    **_numbers(text.percent, NOT_PRINTED, hfu_published="Published HFU"),
    **_numbers(text.percent, NOT_PRINTED, of_empirical_published="Published, of empirical"),
    **_numbers(text.ratio, figure="memory_ratio", memory_ratio="Engine's memory by its"),
    **_numbers(text.ratio, figure="mode_rate", of_nn="Of mode NN"),
    **_numbers(text.ratio, figure="ratio_of_medians", of_medians="Ratio of medians", processor="Processor time"),
    **_numbers(text.ratio, figure="ratio_of_medians", of_medians_low="lowest job", of_medians_high="highest job"),
    **_numbers(text.gain, "", "saved", gain_none="Saved over no overlap"),
    **_numbers(text.gain, NO_BASE, "saved", gain="Saved"),
    **_numbers(text.gain, figure="saved", level=0.0, saved="Time saved"),
    **_numbers(text.gain, NOT_RECORDED, "share_of_greatest_gain", 0.0, share_of_greatest_gain="Of the greatest gain"),
    **_numbers(text.signed, "none exposed", "prediction_error", exposed_error="Error of exposed"),
    **_numbers(text.signed, figure="prediction_error", error="Error", baseline_error="Its error"),
    **_numbers(text.times, figure="speed_up", speed_up="Speed-up", faster="As fast as published"),
    **_numbers(text.times, NOT_RECORDED, "step_by_bound", step_by_bound="Step by its bound"),
    **_numbers(text.tiny, figure="relative_difference", losses="Losses differ", norms="Gradient norms differ"),
    **_numbers(text.tiny, tolerance="Tolerance"),
    "commit": Column("Commit", "commit", lambda commit: commit[:12], numeric=False, missing="unknown"),
    "predicted_s": Column("Predicted", "predicted_s", text.seconds, spread=("low_s", "high_s")),
    "ratio": Column("Paired ratio", "ratio", text.ratio, figure="ratio_over_jobs", spread=("low", "high"), level=1.0),
    "change": Column("Change (95 % interval)", "change", text.signed, spread=("low", "high"), level=0.0),
}


def samples_of(of_images: "pd.Series[bool]") -> str:
    """Name what networks are trained on, of which it is known whether they see images."""
    return "images" if of_images.all() else "sequences or images" if of_images.any() else "sequences"


def first(data: pd.DataFrame) -> str:
    """Give the key of the column that a table of several systems begins with; none for a table of one."""
    return "system" if data["system"].nunique() > 1 else ""


def columns_of(*parts: str | Column, missing: Mapping[str, str] = _NONE, **titles: str) -> tuple[Column, ...]:
    """The columns are of keys separated by blanks, with others among them; titles and missing replace the usual. A key
    that is named twice stands at its first place.
    """
    found: dict[str | Column, Column] = {}
    for part in parts:
        for key in [part] if isinstance(part, Column) else part.split():
            if isinstance(key, Column):
                found[key] = key
            elif key not in found:
                one = KNOWN[key]
                found[key] = replace(one, title=titles.get(key, one.title), missing=missing.get(key, one.missing))
    return tuple(found.values())


ORIGIN = "commit dirty launcher transport hosts devices versions binding remark source"
"""Columns that tell the origin of a job or contest."""


def provenance(runs: pd.DataFrame) -> Table:
    """List every job of a study, newest first."""
    data = runs.sort_values("end", ascending=False, kind="stable")
    keys = "start end status system partition variant model ranks grid overlap"
    columns = columns_of(keys, ORIGIN, missing={"model": "none", "grid": "none"})
    note = "A test that failed later found the result good, and then its figures off their references: it is shown."
    return Table("Provenance of every job", columns, data, "provenance", note if (data["remark"] != "").any() else "")


def failures(runs: pd.DataFrame, name: str) -> list[Table]:
    """Return the jobs that failed, each with its reason, if any did. name: tells the table from others in the page."""
    data = runs[runs["status"] != "ok"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    columns = columns_of(
        first(data), "ranks model grid overlap end reason source", missing={"model": "none", "grid": "none"}
    )
    return [Table("Failed jobs", columns, data, f"{name}-failed")]
