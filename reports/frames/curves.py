"""Loss curves of parallel trainings beside those of the same training run serially (par4d VII-A)."""

import math

import pandas as pd

from engine.result import metrics
from reports.frames.frame import Frames
from reports.frames.jobs import beside_nearest, by_time

KEY = ["system", "partition", "dtype", "model", "batch_size", "course"]
"""Columns in which a parallel job and its serial one agree."""
SERIAL, DATA_PARALLEL = "serial", "data-parallel"
"""References of curves: one rank, or of long ones data parallelism alone."""
LONG, ALONE = "long-", "-data"
"""Variants of long curves are long-text, and long-text-data of what they are compared with (suites/long_validation.py).
"""


def with_course(runs: pd.DataFrame) -> pd.DataFrame:
    """Add course: the variant of long curves, the same for both that are compared; "" for others."""
    long = runs["variant"].where(runs["variant"].str.startswith(LONG), "")
    return runs.assign(course=long.str.removesuffix(ALONE))


def compare(frames: Frames) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return each parallel job with the serial job nearest in time, or a long one with that of data parallelism alone,
    and the two losses step by step.

    The first frame has one row a parallel job: columns of `runs`, `serial` (index of its partner, -1 if there is
    none), reference (SERIAL or DATA_PARALLEL), compared, loss, serial_loss (both of the last common step), largest
    (metrics.relative_difference; beside DATA_PARALLEL of metrics.window_means). The second has one row a step: run,
    index, loss, serial_loss, difference, relative. A loss that is no number differs without bound.
    """
    done = by_time(with_course(frames.runs[frames.runs["status"] == "ok"]))
    long = done["course"] != ""
    reference = done["variant"].str.endswith(ALONE).where(long, done["ranks"] == 1)
    pairs = beside_nearest(done[~reference], done[reference], KEY, "serial")
    pairs["serial"] = pairs["serial"].fillna(-1).astype(int)
    pairs["reference"] = pairs["course"].map(lambda course: DATA_PARALLEL if course else SERIAL)

    losses = frames.iterations[["run", "index", "loss"]]
    steps = losses.merge(pairs[["run", "serial"]], on="run")
    partner = losses.rename(columns={"run": "serial", "loss": "serial_loss"})
    steps = steps.merge(partner, on=["serial", "index"])
    steps["difference"] = steps["loss"] - steps["serial_loss"]
    pairs_of_losses = zip(steps["loss"], steps["serial_loss"], strict=True)
    steps["relative"] = [_relative(loss, serial_loss) for loss, serial_loss in pairs_of_losses]
    by_run = (
        steps.sort_values("index")
        .groupby("run")
        .agg(
            compared=("index", "size"),
            loss=("loss", "last"),
            serial_loss=("serial_loss", "last"),
            largest=("relative", "max"),
        )
    )
    pairs = pairs.merge(by_run.reset_index(), on="run", how="left")
    for at, run in pairs.loc[pairs["reference"] == DATA_PARALLEL, "run"].items():
        if len(mine := steps[steps["run"] == run].sort_values("index")):
            means = (metrics.window_means(mine[key].tolist()) for key in ("loss", "serial_loss"))
            pairs.loc[at, "largest"] = max(map(_relative, *means))
    return pairs, steps


def _relative(loss: float, reference: float) -> float:
    return metrics.relative_difference(loss, reference) if reference else math.inf
