"""Figures of a ratio whose sides took turns, with the ends of its interval: of few rounds of one job it has none."""

from typing import Any

from reframe.core.exceptions import SanityError

from engine.peers.memory import UNFIT
from engine.result import metrics

Found = dict[str, tuple[float | None, str]]


def check_one_contest(record: dict[str, Any]) -> None:
    """Raises SanityError unless `bench peers` held one contest, or says that it doesn't fit, which gives no figures."""
    told = [asked["missing"] for asked in record["contests"] if asked["missing"]]
    for sentence in told:
        if UNFIT not in sentence:
            raise SanityError(f"undecided: the contest was not held, as {sentence}")
    if len(record["comparisons"]) + len(told) != 1:
        raise SanityError(f"the result has {len(record['comparisons'])} contests instead of one")


def contest_figures(contest: dict[str, Any]) -> Found:
    """Of a contest as `bench peers` writes it: ratios of the engine's step time by the peer's, and both."""
    pair = contest["paired"]
    return {
        "ratio": (contest["ratio"], "x"),
        "paired_ratio": (pair["ratio"], "x"),
        "paired_ratio_low": (pair["low"], "x"),
        "paired_ratio_high": (pair["high"], "x"),
        "engine_step": (contest["ours_median_s"], "s"),
        "peer_step": (contest["peer_median_s"], "s"),
    }


def speed_up_figures(name: str, ratio: dict[str, Any]) -> Found:
    """How many times as fast the first side is, under that name, and from _low to _high."""
    low, high = ratio["low"], ratio["high"]
    return {
        name: (metrics.speed_up(1.0, ratio["ratio"]), "x"),
        f"{name}_low": (None if high is None else metrics.speed_up(1.0, high), "x"),
        f"{name}_high": (None if low is None else metrics.speed_up(1.0, low), "x"),
    }
