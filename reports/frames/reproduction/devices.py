"""Products of one device and messages between devices that claims are judged by."""

import math
from collections.abc import Callable
from statistics import geometric_mean

import pandas as pd

from engine.result import metrics
from reports.frames.reproduction.samples import Asked, Row, Sample, inverse_of, lead_of, over_jobs
from reports.read.peaks import facts

FROM_BYTES, TO_BYTES = 1e6, 50e6
"""Sizes of the messages that axonn-ipdps22 compares (Fig. 3)."""


def _peak(asked: Asked, of_advertised: bool) -> Sample | None:
    """Return the best rate of products of one device, by jobs, or its share of the advertised peak."""
    known = facts(asked.machine, asked.number.dtype).advertised
    part = (known.value if known else math.nan) if of_advertised else 1.0
    rows = [
        row
        for row in asked.evidence.rows(asked.machine, "gemm")
        if row["ranks"] == 1 and row["dtype"] == asked.number.dtype and row["study"] == "peak"
    ]
    return over_jobs([row["best_flops_per_s"] / part for row in rows], "one device") if asked.home else None


def empirical(asked: Asked) -> Sample | None:
    return _peak(asked, of_advertised=False)


def share_of_advertised(asked: Asked) -> Sample | None:
    return _peak(asked, of_advertised=True)


def counted_flops(asked: Asked) -> Sample | None:
    """Return the formula's flops of a step that recomputes its blocks, over those that were counted."""
    counted = asked.evidence.frames.counted_flops
    ratios = counted[counted["recomputed"] == "blocks"].set_index("run")["formula_over_counted"]
    for rows in asked.settings("flops", "peak", ("model", "dtype", "ranks")):
        values = [ratios[row["run"]] for row in rows if row["run"] in ratios.index]
        if found := over_jobs(values, f"{rows[0]['model']}, each block recomputed, by torch's counter of operators"):
            return found
    return None


def _products(asked: Asked, figure: Callable[[Row, pd.DataFrame, pd.DataFrame], float]) -> Sample | None:
    """Return a figure of each job's products: of the job, its shapes and their ways."""
    tunings = asked.evidence.frames.tunings
    for rows in asked.settings("matmul", "kernel_tuning"):
        values = []
        for row in rows:
            shapes = tunings.shapes[(tunings.shapes["run"] == row["run"]) & tunings.shapes["own_s"].notna()]
            ways = tunings.ways[tunings.ways["shape"].isin(shapes.index)].dropna(subset=["flops_per_s", "median_s"])
            if len(ways):
                values.append(figure(row, shapes, ways))
        if found := over_jobs(values, f"{rows[0]['model']}, a rank of {rows[0]['grid']}"):
            return found
    return None


def _own(ways: pd.DataFrame) -> pd.DataFrame:
    return ways[ways["own"].astype(bool) & ~ways["column_major"].astype(bool)]


def product_share(asked: Asked) -> Sample | None:
    """Return the slowest product's share of the advertised peak as PyTorch computes it, or the fastest's."""
    slowest = asked.number.what.startswith("a product")

    def share(row: Row, shapes: pd.DataFrame, ways: pd.DataFrame) -> float:
        rates = _own(ways)["flops_per_s"]
        known = facts(row["system"], row["dtype"]).advertised
        return (rates.min() if slowest else rates.max()) / known.value if known else math.nan

    return _products(asked, share)


def product_speed_up(asked: Asked) -> Sample | None:
    """Return how many times as fast the slowest product is by the tuner's choice."""

    def speed_up(row: Row, shapes: pd.DataFrame, ways: pd.DataFrame) -> float:
        slowest = _own(ways).sort_values("flops_per_s").iloc[0]
        same = ways[(ways["shape"] == slowest["shape"]) & (ways["role"] == slowest["role"])]
        chosen = same[same["chosen"].astype(bool)]
        return metrics.speed_up(slowest["median_s"], chosen["median_s"].min()) if len(chosen) else math.nan

    return _products(asked, speed_up)


def compute_gain(asked: Asked) -> Sample | None:
    """Return how many times as fast all products together are by the tuner's choices."""

    def gain(row: Row, shapes: pd.DataFrame, ways: pd.DataFrame) -> float:
        own_s, chosen_s = ((shapes["layers"] * shapes[key]).sum() for key in ("own_s", "chosen_s"))
        return metrics.speed_up(own_s, chosen_s)

    return _products(asked, gain)


def mode_order(asked: Asked) -> Sample | None:
    """Return by how much one mode is ahead of another, over the products that PyTorch computes in the other, and that
    were timed in both.

    Each mode has the storage of the weight that suits it best, and the copies that it takes.
    """
    comparison = asked.target.comparison
    if comparison is None:
        return None

    def slower(row: Row, shapes: pd.DataFrame, ways: pd.DataFrame) -> float:
        own = _own(ways)
        products = own[own["mode"] == comparison.behind].set_index(["shape", "role"]).index.unique()
        fastest = ways.groupby(["shape", "role", "mode"])["median_s"].min().unstack()
        both = fastest.reindex(index=products, columns=[comparison.behind, comparison.ahead]).dropna().reset_index()
        if both.empty:
            return math.nan
        of_shape = shapes.loc[both["shape"], ["layers", "forwards"]].reset_index(drop=True)
        times = of_shape["layers"] * of_shape["forwards"].where(both["role"] == "forward", 1)
        behind_s, ahead_s = ((times * both[mode]).sum() for mode in (comparison.behind, comparison.ahead))
        return metrics.speed_up(behind_s, ahead_s)

    ratio = _products(asked, slower)
    return lead_of(ratio) if ratio else None


def _messages(asked: Asked, operation: str, nodes: int, names: tuple[str, str]) -> Sample | None:
    """Return the time of the second back end by the first one's, the geometric mean over sizes, by job."""
    table = asked.evidence.frames.transfers
    ratios = []
    for row in asked.evidence.rows(asked.machine, "p2p"):
        rows = table[(table["run"] == row["run"]) & (table["operation"] == operation) & (table["nodes"] == nodes)]
        rows = rows[rows["num_bytes"].between(FROM_BYTES, TO_BYTES)]
        both = rows.pivot_table(index=["num_bytes", "among"], columns="backend", values="average_s")
        if set(names) <= set(both):
            both = both.dropna(subset=list(names))
            if len(both):
                ratios.append(geometric_mean(both[names[1]] / both[names[0]]))
    return over_jobs(ratios, f"{operation.replace('_', '-')}s of 1 to 50 MB on {nodes} node{'s' if nodes > 1 else ''}")


def message_order(asked: Asked) -> Sample | None:
    ratio = _messages(asked, "message", 1, ("mpi", "nccl"))
    return lead_of(ratio) if ratio else None


def message_ratio(asked: Asked) -> Sample | None:
    ratio = _messages(asked, "message", 2, ("mpi", "nccl"))
    return inverse_of(ratio) if ratio else None


def all_reduce_order(asked: Asked) -> Sample | None:
    comparison = asked.target.comparison
    nodes = 2 if comparison and "two nodes" in comparison.at else 1
    ratio = _messages(asked, "all_reduce", nodes, ("nccl", "mpi"))
    return lead_of(ratio) if ratio else None
