"""Flops of a training step as torch counts them, beside the formula that utilisation takes (axonn-sc24 VI-C)."""

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.frames.frame import Frames
from reports.frames.jobs import measured_by
from reports.page import KeyFact, Table
from reports.words import NOTES


def by_step(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a step of a network in a number format; what jobs counted differently has a row each."""
    counted = measured_by(frames.counted_flops, runs).join(runs[["model", "dtype"]], on="run")
    keys = ["model", "dtype", "recomputed", "counted", "formula", "formula_over_counted"]
    return counted.groupby(keys, sort=False).agg(jobs=("run", "count")).reset_index()


def farthest(table: pd.DataFrame) -> KeyFact:
    """Say how far the formula is from what was counted, in the step that is farthest off."""
    row = table.sort_values("formula_over_counted", key=lambda ratios: (ratios - 1).abs()).iloc[-1]
    ratio, jobs = text.significant(row["formula_over_counted"], 4), text.plural(int(table["jobs"].sum()), "count")
    return f"{ratio}x", "the flops of a step, by the formula", f"{row['model']}; of {jobs}"


def step_table(name: str, table: pd.DataFrame) -> Table:
    columns = columns_of("model dtype recomputed counted formula formula_over_counted jobs")
    return Table("Flops of a training step", columns, table, f"{name}-flops", NOTES["counted_flops"])
