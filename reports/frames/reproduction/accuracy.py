"""Accuracy by epoch of a tensor mode beside data parallelism, by which a claim is judged."""

import math

from engine.result.gate import Interval
from reports.frames.evaluations import DATA, KEY
from reports.frames.modes import of_framework
from reports.frames.reproduction.samples import Asked, Sample, grouped, in_order, setting
from reports.text import plural


def by_epoch(asked: Asked) -> Sample | None:
    """Return the accuracy of a number's mode by that of data parallelism, where it is farthest from 1.

    Each seed is a job. The interval spans all of them, as each has to be right.
    """
    mode = of_framework(asked.number.framework)
    pairs = [row for row in asked.evidence.accuracies if (row["system"], row["mode"]) == (asked.machine, mode)]
    mine = [row for row in pairs if math.isfinite(row["farthest"])]
    if asked.home:
        mine = [row for row in mine if row["series"].startswith(f"{asked.claim.paper}-")]
    keys = [key for key in KEY if key != "seed"]
    for rows in in_order(grouped(mine, lambda row: tuple(str(row[key]) for key in (*keys, "grid")))):
        by_seed = {row["seed"]: row["farthest"] for row in rows}  # of a seed the newest
        ratios = list(by_seed.values())
        worst = max(ratios, key=lambda ratio: abs(ratio - 1))
        of = f"{setting(rows[0])}, {plural(int(rows[0]['evaluations']), 'epoch')}, beside {DATA} parallelism"
        return Sample(worst, Interval(min(ratios), max(ratios)), len(ratios), of)
    return None
