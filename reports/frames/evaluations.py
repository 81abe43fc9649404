"""Evaluations of data that isn't trained on, and how accurate each tensor mode becomes beside data parallelism."""

import math
from collections.abc import Sequence

import pandas as pd

from engine.result.schema import Result
from reports.frames.jobs import beside_nearest, by_time, long
from reports.frames.modes import MODES, of_series

STUDY = "evaluation"
DATA = "data"
"""Ending of the series' name of those trainings that others are compared with: data parallelism alone."""
KEY = ["system", "partition", "dtype", "model", "batch_size", "counted_iterations", "seed"]
"""Columns in which a training and that of data parallelism agree."""


def evaluations(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row an evaluation. right: share of tokens or images; NaN where nothing is right or wrong. perplexity: of
    text; NaN of images.
    """
    found = long(results, lambda one: one.evaluations, plain="step samples", numbers="loss right time_s")
    perplexity = [
        one.perplexity if result.model is not None and result.model.vocabulary is not None else math.nan
        for result in results
        for one in result.evaluations
    ]
    seeds = [str(results[run].config.get("seed", "")) for run in found["run"]]
    return found.assign(perplexity=pd.Series(perplexity, index=found.index, dtype=float), seed=seeds)


def series_mode(series: object) -> str:
    """Return the mode on which a series' name ends, as colossal-ai calls it, or DATA; "" for another name."""
    mode = of_series(series)
    return DATA if mode == DATA.upper() else mode if mode in MODES else ""


def with_last(runs: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that evaluated, with mode, seed, epochs, and what the last evaluation found and the best."""
    mine = table[table["run"].isin(runs.index)].sort_values("step")
    last = mine.groupby("run").agg(
        evaluations=("step", "size"),
        loss=("loss", "last"),
        perplexity=("perplexity", "last"),
        right=("right", "last"),
        best_right=("right", "max"),
        samples=("samples", "last"),
        seed=("seed", "last"),
    )
    return runs.join(last, how="inner").assign(mode=runs["series"].map(series_mode))


def beside_data(runs: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of with_last in a tensor mode, with the training by data parallelism that is nearest in time.

    reference: the index of its run. farthest: its accuracy by the other's at the evaluation at which that is farthest
    from 1. apart: the largest difference of accuracies. NaN where they have no evaluation in common.
    """
    done = by_time(runs[(runs["status"] == "ok") & (runs["study"] == STUDY)])
    pairs = beside_nearest(done[done["mode"].isin(MODES)], done[done["mode"] == DATA], KEY, "reference")
    pairs = pairs.dropna(subset="reference")
    shares = {run: rows.set_index("step")["right"] for run, rows in table.groupby("run")}
    both = [
        pd.concat([shares[run], shares[other]], axis=1, join="inner")
        for run, other in zip(pairs["run"], pairs["reference"].astype(int), strict=True)
    ]
    return pairs.assign(
        farthest=pd.Series([_farthest(one) for one in both], index=pairs.index, dtype=float),
        apart=pd.Series(
            [(one.iloc[:, 0] - one.iloc[:, 1]).abs().max() for one in both], index=pairs.index, dtype=float
        ),
    )


def _farthest(shares: pd.DataFrame) -> float:
    """Return the ratio of the first column by the second that is farthest from 1, up or down; NaN without any."""
    ratios = [
        mine / other if other > 0 else 1.0 if mine == other else math.inf
        for mine, other in shares.dropna().itertuples(index=False)
    ]
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=math.nan)
