"""Frames of what single devices and links reach, and of images: a row a measured thing of a result."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from engine.result import metrics
from engine.result.schema import Result
from reports.derived import by_row
from reports.frames.jobs import long
from reports.text import clean, number, positive

PLACES = {
    "within": "within a node",
    "alone": "between nodes, one rank a node and nothing beside it",
    "shared": "between nodes, all ranks of the nodes at once",
}
RING_KINDS = {"all_gather": "All-gather", "reduce_scatter": "Reduce-scatter", "all_reduce": "All-reduce"}
RING = ["where", "apart", "ring", "groups", "nodes"]
"""Columns that tell one shape of rings from another."""
SAMPLE_COLUMNS = ["run", "trained", "trained_steps", "sampler", "steps", "images", "side", "png"]


def rings(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each group of rings: its shape, and the rate of each kind of collective."""
    rows = []
    for run, result in enumerate(results):
        for where in PLACES if result.links else ():
            for ring in getattr(result.links, where):
                kinds: dict[str, float] = {}
                for timed in ring.times:  # the largest message is first
                    kinds.setdefault(timed.kind, positive(timed.bytes_per_s))
                shape = zip(RING[1:], (ring.apart, ring.ranks, ring.groups, ring.nodes), strict=True)
                rows.append(
                    {"run": run, "where": where, "ring_bytes_per_s": positive(ring.bytes_per_s)}
                    | {key: number(value) for key, value in shape}
                    | {"message_bytes": number(result.links.message_bytes if result.links else None)}
                    | {kind: kinds.get(kind) for kind in RING_KINDS}
                )
    return pd.DataFrame(rows, columns=["run", *RING, "message_bytes", "ring_bytes_per_s", *RING_KINDS])


def broadcasts(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each group of ranks that broadcast a message. ranks: by blanks."""
    rows = [
        {
            "run": run,
            "ranks": " ".join(map(str, one.ranks)),
            "among": len(one.ranks),
            "message_bytes": number(result.links.message_bytes),
            "broadcast_bytes_per_s": positive(one.bytes_per_s),
        }
        for run, result in enumerate(results)
        if result.links is not None
        for one in result.links.broadcasts
    ]
    return pd.DataFrame(rows, columns=["run", "ranks", "among", "message_bytes", "broadcast_bytes_per_s"])


def transfers(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each size of each back end's messages and all-reduces."""
    table = long(
        results,
        lambda result: result.transfers,
        plain="operation backend nodes ranks num_bytes",
        positives="average_s low_s high_s",
    )
    return table.rename(columns={"ranks": "among"})


def gemm_modes(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each mode of matrix products. of_nn: of the rate of mode NN in the same job."""
    table = long(results, lambda result: result.gemm_modes, plain="mode", numbers="size", positives="flops_per_s")
    nn = table[table["mode"] == "NN"].drop_duplicates("run").set_index("run")["flops_per_s"]
    return table.assign(
        dtype=[clean(results[run].dtype, 20) for run in table["run"]],
        of_nn=by_row(metrics.mode_rate, table["flops_per_s"], table["run"].map(nn)),
    )


def samples(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each sheet of images. trained: the folder of the training's checkpoints."""
    rows = [
        (run, str(Path(str(result.config.get("resume", ""))).parent), *(getattr(sheet, k) for k in SAMPLE_COLUMNS[2:]))
        for run, result in enumerate(results)
        if (sheet := result.images) is not None
    ]
    return pd.DataFrame(rows, columns=SAMPLE_COLUMNS)
