"""Noises of nights: what every night of a figure is, relative to its usual value, where nothing changes. All scales are
standard deviations of logarithms; every figure has one job a night, which differs from its night by JOB.

Quiet ones are weather. In states of the machine, such as two kinds of nodes, something is wrong, but it is no
regression of last night's update. measured is jobs of measured_noise.csv, drawn at random, each about its own figure's
median; mixed has figures of every quiet noise.
"""

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import stdtrit

MEASURED = Path(__file__).with_name("measured_noise.csv")
NIGHT, LITTLE, JOB = 0.015, 0.005, 0.005
HEAVY_RANGE = 0.02
"""Interquartile range of Student's t."""
OUTLIER = math.log(1.3)
MOOD = (0.5, 1.2)
"""Least and most of the canary's noise that a figure shares."""
CANARY = 0.003

Floats: TypeAlias = np.ndarray
Draw: TypeAlias = Callable[[int, int, np.random.Generator], Floats]
"""Draws figures by nights."""


@cache
def residuals(path: Path = MEASURED) -> dict[str, Floats]:
    """Read the logarithms of every figure about their median, by its name."""
    found: dict[str, list[float]] = {}
    with path.open() as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            found.setdefault(row["figure"], []).append(math.log(float(row["value"])))
    return {name: np.array(logs) - median(logs) for name, logs in found.items()}


def gauss(figures: int, nights: int, random: np.random.Generator, scale: float = NIGHT) -> Floats:
    return scale * random.normal(size=(figures, nights))


def student(figures: int, nights: int, random: np.random.Generator, *, degrees_of_freedom: int) -> Floats:
    scale = HEAVY_RANGE / 2 / stdtrit(degrees_of_freedom, 0.75)
    return scale * random.standard_t(degrees_of_freedom, size=(figures, nights))


def weekly(figures: int, nights: int, random: np.random.Generator, *, by: float) -> Floats:
    """Draw two nights of seven that are faster."""
    day = (np.arange(nights) + random.integers(7, size=(figures, 1))) % 7
    return gauss(figures, nights, random, LITTLE) - by * (day < 2)


def season(figures: int, nights: int, random: np.random.Generator, *, period: float, by: float) -> Floats:
    phase = 2 * math.pi * random.random((figures, 1))
    return gauss(figures, nights, random, LITTLE) + by * np.sin(2 * math.pi * np.arange(nights) / period + phase)


def outliers(figures: int, nights: int, random: np.random.Generator, *, share: float) -> Floats:
    return gauss(figures, nights, random) + OUTLIER * (random.random((figures, nights)) < share)


def autocorrelated(
    figures: int, nights: int, random: np.random.Generator, *, rho: float, scale: float = NIGHT
) -> Floats:
    found = random.normal(size=(figures, nights))
    for night in range(1, nights):
        found[:, night] = rho * found[:, night - 1] + math.sqrt(1 - rho**2) * found[:, night]
    return scale * found


def walk(figures: int, nights: int, random: np.random.Generator, *, step: float, most: float) -> Floats:
    """Draw a random walk that is reflected at either end."""
    place = np.cumsum(step * random.normal(size=(figures, nights)), axis=1)
    return most - np.abs((place + most) % (4 * most) - 2 * most)


def garch(figures: int, nights: int, random: np.random.Generator, *, moves: float, stays: float) -> Floats:
    """Draw nights whose variance follows the squares of the nights before."""
    new, found = random.normal(size=(figures, nights)), np.empty((figures, nights))
    variance = np.full(figures, NIGHT**2)
    for night in range(nights):
        found[:, night] = np.sqrt(variance) * new[:, night]
        variance = NIGHT**2 * (1 - moves - stays) + moves * found[:, night] ** 2 + stays * variance
    return found


def states(
    figures: int, nights: int, random: np.random.Generator, *, share: float, by: float, run: float | None = None
) -> Floats:
    """Draw a share of nights that are slower, in runs of so many nights on average (geometric), or each alone."""
    run = 1 / (1 - share) if run is None else run
    enters = share / (1 - share) / run
    draws, slow = random.random((figures, nights)), np.empty((figures, nights), bool)
    slow[:, 0] = draws[:, 0] < share
    for night in range(1, nights):
        slow[:, night] = draws[:, night] < np.where(slow[:, night - 1], 1 - 1 / run, enters)
    return gauss(figures, nights, random) + math.log1p(by) * slow


def measured(figures: int, nights: int, random: np.random.Generator) -> Floats:
    every = list(residuals().values())
    return np.stack([random.choice(every[figure % len(every)], nights) for figure in range(figures)])


def mixed(figures: int, nights: int, random: np.random.Generator) -> Floats:
    quiet = [noise.draw for name, noise in NOISES.items() if noise.group == "quiet" and name != "mixed"]
    return np.concatenate([quiet[figure % len(quiet)](1, nights, random) for figure in range(figures)])


@dataclass(frozen=True, slots=True)
class Noise:
    group: Literal["quiet", "states"]
    draw: Draw


NOISES = {
    "gauss": Noise("quiet", gauss),
    "t3": Noise("quiet", partial(student, degrees_of_freedom=3)),
    "t2": Noise("quiet", partial(student, degrees_of_freedom=2)),
    "weekly3": Noise("quiet", partial(weekly, by=0.03)),
    "month": Noise("quiet", partial(season, period=30, by=0.02)),
    "out5": Noise("quiet", partial(outliers, share=0.05)),
    "ar0.7": Noise("quiet", partial(autocorrelated, rho=0.7)),
    "ar0.95": Noise("quiet", partial(autocorrelated, rho=0.95)),
    "walk": Noise("quiet", partial(walk, step=0.002, most=0.05)),
    "garch": Noise("quiet", partial(garch, moves=0.2, stays=0.75)),
    "measured": Noise("quiet", measured),
    "mixed": Noise("quiet", mixed),
    "bimodal10": Noise("states", partial(states, share=0.1, by=0.1)),
    "bimodal30": Noise("states", partial(states, share=0.3, by=0.1)),
    "sticky3": Noise("states", partial(states, share=0.3, by=0.05, run=3)),
    "sticky10": Noise("states", partial(states, share=0.3, by=0.05, run=10)),
    "out5runs": Noise("states", partial(states, share=0.05, by=0.3, run=2.5)),
}


def draw(
    name: str, figures: int, nights: int, random: np.random.Generator, *, canary: bool = False
) -> tuple[Floats, Floats | None]:
    """Draw the jobs of a system's figures, one a night, and of the canary.

    canary: the noise is the machine's, which every figure shares by a part of its own and the canary wholly; beside it
    nights of a figure differ by LITTLE.
    """
    of = NOISES[name].draw
    if not canary:
        return of(figures, nights, random) + gauss(figures, nights, random, JOB), None
    (mood,) = of(1, nights, random)
    own = gauss(figures, nights, random, LITTLE) + gauss(figures, nights, random, JOB)
    return random.uniform(*MOOD, (figures, 1)) * mood + own, mood + CANARY * random.normal(size=nights)
