"""Tables of contests that the pages of contests share: all that was measured, what failed, what was not held, and where
each comes from.
"""

import pandas as pd

from reports import text
from reports.page import NOT_TOLD, Column, Table
from reports.provenance import MACHINES, ORIGIN, START_AND_END

NOT_FUSED = (
    "Beyond what a contest fixes for both sides, such as the number format, the layout, and what makes both compute "
    "the same. A setting that isn't listed is as the library comes. On processors no library has kernels of its own "
    "here: attention is PyTorch's fused one but in Megatron-core and in Colossal-AI's GPT-2, where it is in parts, and "
    "only the peer compile is compiled. FSDP2, HSDP and DeepSpeed wait there for each of their collectives, as they "
    "overlap them by streams, which only GPUs have. The column of GPUs follows the sources, and what of it a library "
    "had to do without is beside its versions; no GPU has confirmed it."
)


def tiny(value: float) -> str:
    """A relative difference."""
    return f"{value:.1e}"


def contests_table(name: str, rows: pd.DataFrame) -> Table:
    """Every contest with all that was measured."""
    columns = (
        *([Column("Model", "model", numeric=False, missing="unknown")] if rows["model"].nunique() > 1 else []),
        Column("Peer", "peer", numeric=False),
        Column("which is", "peer_is", numeric=False),
        Column("Its layout", "layout", numeric=False, missing="that of our grid"),
        Column("Grid", "grid", numeric=False),
        Column("Road", "road", numeric=False, missing=NOT_TOLD),
        Column("Outcome", "verdict", numeric=False),
        Column("Paired ratio", "ratio", text.ratio, figure="ratio_over_jobs"),
        Column("from", "low", text.ratio, missing="not known", figure="ratio_over_jobs"),
        Column("to", "high", text.ratio, missing="not known", figure="ratio_over_jobs"),
        Column("over other roads", "beside", numeric=False, missing="not measured"),
        Column("Ratio of medians", "of_medians", text.ratio, figure="ratio_of_medians"),
        Column("lowest job", "of_medians_low", text.ratio, figure="ratio_of_medians"),
        Column("highest job", "of_medians_high", text.ratio, figure="ratio_of_medians"),
        Column("Target", "target", numeric=False, missing="none"),
        Column("which is", "standing", numeric=False, missing=""),
        Column("Processor time", "processor", text.ratio, figure="ratio_of_medians"),
        Column("Our step", "ours_s", text.seconds),
        Column("Peer's step", "peer_s", text.seconds),
        Column("Jobs", "jobs", text.count),
        Column("Rounds", "rounds", text.count),
        Column("Losses differ", "losses", tiny, figure="relative_difference"),
        Column("Gradient norms differ", "norms", tiny, missing="not kept", figure="relative_difference"),
        Column("Tolerance", "tolerance", tiny),
        Column("Steps compared", "compared", text.count),
        Column("Sequences", "sequences", numeric=False, missing="unknown"),
        Column("of tokens", "sequence", numeric=False, missing="unknown"),
        Column("Checkpointing", "checkpointing", numeric=False, missing="unknown"),
        Column("Threads", "threads", numeric=False, missing="unknown"),
        Column("Overlap", "overlap", numeric=False, missing="unknown"),
        Column("Sides", "apart", numeric=False, missing=""),
        Column("Peer's bf16", "bf16", numeric=False, missing="none"),
        Column("Tokens/s, ours", "ours_tokens_per_s", text.significant, figure="rate"),
        Column("peer's", "peer_tokens_per_s", text.significant, figure="rate"),
        Column("MFU, ours", "ours_mfu", text.percent, missing="no peak known", figure="utilisation"),
        Column("peer's", "peer_mfu", text.percent, missing="no peak known", figure="utilisation"),
        Column("Memory, ours", "ours_bytes", text.memory),
        Column("peer's", "peer_bytes", text.memory),
        Column("Memory, fullest rank", "memory_max", text.memory, missing="not told"),
        Column("Network", "network", numeric=False, missing="not told"),
    )
    note = "Losses and gradient norms: the largest relative difference in a step before those that were timed. Memory: "
    note += "of a side by the device's allocator on rank 0; of the fullest rank, all of a process, which may have both."
    return Table(
        "Contests",
        columns,
        rows.assign(lost=(rows["failed"] > 0) & (rows["jobs"] == 0)),
        f"{name}-contests",
        note,
        "lost",
    )


def failures(table: pd.DataFrame) -> list[Table]:
    data = table[table["status"] == "failed"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    columns = (
        Column("Peer", "peer", numeric=False),
        Column("Grid", "grid", numeric=False),
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Model", "model", numeric=False, missing="unknown"),
        Column("Number format", "dtype", numeric=False),
        Column("End", "end", text.moment, missing="unknown"),
        Column("Reason", "reason", numeric=False, wide=True),
        Column("Result", "source", numeric=False, wide=True),
    )
    return [Table("Failed contests", columns, data, "failed")]


def missing(table: pd.DataFrame) -> list[Table]:
    """Contests that no machine of theirs could hold, each machine and reason once. models: that it is told of."""
    data = table[table["status"] == "missing"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    same = ["peer", "layout", "ranks", "system", "reason"]
    models = data.groupby(same)["model"].transform(lambda names: text.clean(", ".join(sorted(set(names) - {""})), 200))
    data = data.assign(models=models).drop_duplicates(same)
    columns = (
        Column("Peer", "peer", numeric=False),
        Column("which is", "peer_is", numeric=False),
        Column("Its layout", "layout", numeric=False, missing="that of our grid"),
        Column("Ranks", "ranks", text.count),
        Column("Models", "models", numeric=False, missing="unknown"),
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Why", "reason", numeric=False, wide=True),
        Column("Result", "source", numeric=False, wide=True),
    )
    return [Table("Contests that can't be held there", columns, data, "missing")]


def settings(table: pd.DataFrame) -> list[Table]:
    """What peers are set to, as the newest results of each tell it."""
    data = table.sort_values("end", ascending=False, kind="stable")[["peer", "settings"]]
    rows = [
        {"peer": peer, **{name: text.clean(str(value or ""), 200) for name, value in setting.model_dump().items()}}
        for peer, told in data.drop_duplicates("peer").sort_values("peer").itertuples(index=False)
        for setting in told
    ]
    if not rows:
        return []
    columns = (
        Column("Peer", "peer", numeric=False),
        Column("Setting", "name", numeric=False),
        Column("On processors", "cpu", numeric=False),
        Column("On GPUs", "cuda", numeric=False),
        Column("if there is", "needs", numeric=False, missing=""),
        Column("Source", "source", numeric=False, wide=True),
    )
    return [Table("How each peer is set", columns, pd.DataFrame(rows), "settings", NOT_FUSED)]


def provenance(table: pd.DataFrame) -> Table:
    """Every contest of every command, newest first."""
    data = table.sort_values("end", ascending=False, kind="stable").assign(jobs=table["measured"].map(len))
    columns = (
        *START_AND_END,
        Column("Peer", "peer", numeric=False),
        Column("Grid", "grid", numeric=False),
        Column("Road", "road", numeric=False, missing=NOT_TOLD),
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Partition", "partition", numeric=False, missing="none"),
        Column("Model", "model", numeric=False, missing="unknown"),
        Column("Number format", "dtype", numeric=False),
        Column("Jobs", "jobs", text.count),
        Column("Warm-up steps", "warmup", numeric=False, missing="unknown"),
        Column("Steps a round", "steps_per_round", numeric=False, missing="unknown"),
        Column("Load before", "load", lambda value: f"{value:.1f}"),
        *ORIGIN,
        Column("Test failed later", "remark", numeric=False, missing="no", wide=True),
        *MACHINES,
        Column("Result", "source", numeric=False, wide=True),
    )
    return Table("Provenance of every contest", columns, data, "provenance")
