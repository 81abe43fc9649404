"""The pictures of the page of kernel modes: rates by shape and way, and steps with and without the tuner."""

import math
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import text
from reports.derived import by_row
from reports.page import Figure
from reports.plots.heat import Cell, Group, heat
from reports.plots.rows import Dot, around_one
from reports.read.peaks import ABOVE

PRODUCTS = {"forward": "O = I W", "input_gradient": "dI = dO Wᵀ", "weight_gradient": "dW = Iᵀ dO"}
MODES = ("NN", "NT", "TN", "oneDNN")
STORED = {False: "weight by rows", True: "weight by columns"}
GROUPS = [(role, stored) for role in PRODUCTS for stored in STORED]
MOST_ROWS = 16
MOST_STEPS = 40


def heat_map(name: str, run: "pd.Series[Any]", shapes: pd.DataFrame, ways: pd.DataFrame) -> Figure:
    """Draw the rate of every way of every shape, of the empirical peak, else of the advertised, else in flop/s.

    run: of whose device the peak is.
    """
    drawn = shapes.dropna(subset="own_s").head(MOST_ROWS)
    ways = ways[ways["shape"].isin(drawn.index)]
    ways = ways.assign(
        of_empirical=by_row(metrics.utilisation, ways["flops_per_s"], 1, float(run["empirical"])),
        of_advertised=by_row(metrics.utilisation, ways["flops_per_s"], 1, float(run["advertised"])),
    )
    colour, unit, said = _scale(run, ways)
    share = (ways[colour] / ways[colour].max()).tolist() if colour == "flops_per_s" else ways[colour].tolist()
    factor, letter = text.prefix(float(ways["flops_per_s"].max()))
    words = [text.significant(value / factor if colour == "flops_per_s" else 100 * value, 2) for value in ways[colour]]
    places = {shape: row for row, shape in enumerate(drawn.index)}
    untried = Cell(math.nan, "")
    modes = [mode for mode in MODES if mode != "oneDNN" or mode in set(ways["mode"])]
    cells = {
        (row, group, mode): untried
        for row in places.values()
        for group in range(len(GROUPS))
        for mode in range(len(modes))
    }
    described = []
    for way, value, number in zip(ways.to_dict("records"), share, words, strict=True):
        role, mode = way["role"], way["mode"]
        place = (places[way["shape"]], GROUPS.index((role, bool(way["column_major"]))), modes.index(mode))
        cells[place] = Cell(value, number, framed=bool(way["chosen"]), dotted=bool(way["own"]))
        if way["chosen"]:
            layer = drawn["layer"][way["shape"]]
            described.append(f"{layer}, {PRODUCTS[role]}: {mode}, {text.flops(way['flops_per_s'])}")
    title = f"Rate of every way, {letter}flop/s" if colour == "flops_per_s" else f"Rate of every way, {unit}"
    drawing = heat(
        [(_layers(shape), f"{shape.m} x {shape.k} by {shape.k} x {shape.n}") for shape in drawn.itertuples()],
        [Group(PRODUCTS[role], STORED[stored], tuple(modes)) for role, stored in GROUPS],
        cells,
        ("what the tuner chose", "copies no operand: by rows, PyTorch's own mode"),
    )
    caption = (
        f"The fuller the colour the faster. {said} A dash: not tried, for want of memory or because the weight is "
    )
    caption += "also looked up by rows."
    if len(shapes) > len(drawn):
        caption += f" {len(drawn)} of {len(shapes)} shapes: the others could not be timed, or are in the table only."
    csv = ways.join(shapes[["layer", "size"]], on="shape")[
        ["layer", "size", "role", "column_major", "mode", "own", "chosen", "median_s", "low_s", "high_s", "flops_per_s",
         "of_empirical", "of_advertised"]
    ]  # fmt: skip
    return Figure(title, caption, drawing, csv, f"{name}-heat", "Chosen: " + ". ".join(described) + ".")


def _scale(run: "pd.Series[Any]", ways: pd.DataFrame) -> tuple[str, str, str]:
    """Return the column that cells are coloured by, its unit, and the caption's sentence on it."""
    if ways["of_empirical"].notna().any():
        peak = f"{text.flops(float(run['empirical']))} ({run['empirical_from']})"
        return (
            "of_empirical",
            "% of the empirical peak",
            f"Empirical peak: {peak}.{ABOVE if (ways['of_empirical'] > 1).any() else ''}",
        )
    if ways["of_advertised"].notna().any():
        peak = text.flops(float(run["advertised"]))
        return "of_advertised", "% of the advertised peak", f"Advertised peak: {peak}; no empirical one is known."
    return "flops_per_s", "", "No peak is known of this device: the fullest colour is the fastest product here."


def _layers(shape: Any) -> str:
    """Return the first layer's name without its block, and how many there are."""
    parts = shape.layer.split(".")
    kept = parts[2:] if len(parts) > 2 and parts[1].isdigit() else parts
    return ".".join(kept) + (f" \u00d7{shape.layers}" if shape.layers > 1 else "")


def step_dots(tuned: pd.DataFrame) -> Figure:
    shown = tuned.head(MOST_STEPS)
    rows = [
        Dot(
            f"{row['model']}  {row['grid']}",
            row["low"],
            row["high"],
            ratio=row["ratio"],
            colour=row["colour"],
            missing="failed",
            notes=(
                text.clean(row["system"], 18),
                *((f"{row['ratio']:.3f}", text.span(row["low"], row["high"])) if row["jobs"] else ("", "")),
            ),
        )
        for _, row in shown.iterrows()
    ]
    title = "Tuned step by untuned step"
    said = [f"{row['model']} on {row['grid']}: {row['ratio']:.3f}" for _, row in shown.iterrows() if row["jobs"]]
    drawing = around_one(
        rows,
        ("the tuner gains", "the tuner loses"),
        "time of a tuned step by that of an untuned one",
        columns=("system", "paired", "interval"),
    )
    caption = (
        "Dot and whiskers: paired ratio with its interval. Grey: the tuner changed nothing and 1 is the truth, or "
        "undecided, as the interval holds 1 or is of one job."
    )
    keys = ["system", "model", "dtype", "grid", "changed", "ratio", "low", "high", "ours_s", "peer_s", "jobs", "rounds"]
    return Figure(title, caption, drawing, shown[keys], "steps-dots", f"Paired ratios. {'. '.join(said)}.")
