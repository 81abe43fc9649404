"""Slow nodes: by how much, and whether they explain that nights are worse.

    explanation = explain(nights, since, figures)    nights: up to the last worse one; since: position of the first one
    describe(explanation)                            "explained by nodes: x1203 (6.0 % slower, ...), ..."

The effect of a node is the mean of jobs with it less that of jobs without it, among jobs of one test (and on one side
of an episode's beginning, so that a node that the queue draws more often since then isn't blamed for what began). Its
interval has Student's t by runs: jobs one after the other with the node, or without it, count as one, because what else
moves the machine lasts for several of them. Bonferroni's correction is over all nodes that are tried. A job of several
nodes is as slow as its slowest one: the slowest node is found first, and the next among the jobs without it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from engine.result.gate import CONFIDENCE
from reports import text
from reports.nights.judge import collect_figures
from reports.nights.noise import LEAST_SCALE, Floats
from reports.read.history import NODES, Night, NightJob
from systems.references import LEAST, Key, worse_by

Flags: TypeAlias = npt.NDArray[np.bool_]
Value: TypeAlias = Callable[[NightJob], float | None]
"""How bad a job is, as a logarithm relative to what is usual; None of a job that doesn't count."""

FEWEST = 3
"""Fewest jobs with a node, and without it, that tell of it."""
FEWEST_RUNS = 2
"""Fewest times that a node comes and goes: what one run of jobs has may be the time's, not the node's."""
BEFORE = 60
"""Nights before the first worse one that are looked at."""
LATELY, LONG = (10, 20, 60), (60, 180)
"""Numbers of last nights: the first that tells whether a node is slow counts. To leave a node out, and on the page."""
MEMORY = "B"
"""Unit of figures that no node changes."""
SAME = 1e-9
"""Least share by which a job differs from its stratum."""


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """Effect of a node on its jobs, as logarithms; positive is worse."""

    node: str
    jobs: int
    """Jobs on it."""
    effect: float
    low: float
    high: float
    in_most: bool = True
    """Whether most of its jobs, by themselves, are worse by half of the effect or more."""

    @property
    def is_slow(self) -> bool:
        return self.low > 0 and math.expm1(self.effect) >= LEAST and self.in_most


@dataclass(frozen=True, slots=True)
class Explanation:
    """Answer to whether nodes explain that nights are worse."""

    outcome: Literal["explained", "not explained", "unknown"]
    effects: tuple[NodeEffect, ...] = ()
    """Effects of the nodes that jobs enough tell of, the slowest first."""
    size: float = math.nan
    """Logarithm by which the jobs of worse nights are worse."""
    without: float = math.nan
    """The same without the effects of slow nodes."""
    reason: str = ""
    """Why it is unknown."""

    @property
    def slow(self) -> tuple[NodeEffect, ...]:
        return tuple(each for each in self.effects if each.is_slow)


@dataclass(frozen=True, slots=True)
class Sample:
    """Jobs in their order."""

    values: Floats
    strata: npt.NDArray[np.int64]
    """Jobs are compared with those of the same number alone."""
    nodes: tuple[str, ...]
    drawn: Flags
    """Whether a job (row) is on a node (column)."""
    on: Flags
    """The same, of the jobs whose nodes are to tell."""

    def among(self, rows: Flags) -> "Sample":
        return replace(
            self, values=self.values[rows], strata=self.strata[rows], drawn=self.drawn[rows], on=self.on[rows]
        )

    def centred(self, column: Floats | Flags) -> Floats:
        """Subtract from a number of each job the mean of its stratum."""
        mean = np.bincount(self.strata, weights=column) / np.maximum(np.bincount(self.strata), 1)
        return np.asarray(column - mean[self.strata], dtype=np.float64)


def how_bad(figures: Iterable[tuple[Key, str]], jobs: Iterable[NightJob]) -> Value:
    """Return what tells how bad a job is: the mean of these figures, each relative to its median over `jobs`."""
    wanted, usual = set(figures), dict[tuple[Key, str], list[float]]()
    for job in jobs:
        for name in job.figures:
            if (job.key, name) in wanted:
                usual.setdefault((job.key, name), []).append(_logarithm(job, name))
    levels = {figure: median(values) for figure, values in usual.items()}

    def value(job: NightJob) -> float | None:
        of_job = [(name, levels[job.key, name]) for name in job.figures if (job.key, name) in levels]
        return fmean(_logarithm(job, name) - level for name, level in of_job) if of_job else None

    return value


def _logarithm(job: NightJob, figure: str) -> float:
    number, unit = job.figures[figure]
    return worse_by(unit) * math.log(number)


def nodes_of(job: NightJob) -> frozenset[str]:
    """Return the names of the nodes that a job ran on; none where it doesn't tell."""
    return frozenset(filter(None, job.state.get(NODES, "").split(", ")))


def node_effects(parts: Iterable[Iterable[NightJob]], value: Value, looks: int = 1) -> tuple[NodeEffect, ...]:
    """Estimate the effects of nodes, the slowest first: of those that jobs enough tell of.

    parts: jobs in their order, which are compared within each part alone. looks: number of such samples that share the
    chance to be wrong.
    """
    told = [(*one, part) for part, jobs in enumerate(parts) for one in _counted(jobs, value)]
    strata = [(job.key, part) for job, _, part in told]
    return _effects(_sample([(job, bad) for job, bad, _ in told], strata), looks) if told else ()


def slow_nodes(nights: Sequence[Night], windows: Sequence[int], changes: Iterable[int] = ()) -> list[NodeEffect]:
    """Find the nodes that are slow over all figures, the slowest first. windows: LATELY or LONG. changes: positions of
    nights from which on the machine is slower or faster, whatever the nodes.
    """
    lately, bounds = nights[-windows[-1] :], [0, *sorted(changes), len(nights)]
    figures = [(one.key, one.figure) for one in collect_figures(lately) if one.unit != MEMORY]
    value, known = how_bad(figures, (job for night in lately for job in night.jobs)), dict[str, NodeEffect]()
    for window in windows:
        first = len(nights) - window
        parts = [[job for night in nights[max(at, first) : end] for job in night.jobs] for at, end in pairwise(bounds)]
        for each in node_effects(parts, value, looks=len(windows)):
            if each.is_slow or each.high < math.log1p(LEAST):
                known.setdefault(each.node, each)
    return sorted((each for each in known.values() if each.is_slow), key=lambda each: -each.effect)


def explain(nights: Sequence[Night], since: int, figures: Iterable[tuple[Key, str]]) -> Explanation:
    """Tell whether nodes explain that figures are worse since a night: some are slow, and less than half is left
    without their effects. They don't if half or more is left on nodes that ran in the nights before, and of which jobs
    enough tell that they aren't that slow.
    """
    first = max(0, since - BEFORE)
    value = how_bad(figures, (job for night in nights[first:since] for job in night.jobs))
    counted = [(at, *one) for at in range(first, len(nights)) for one in _counted(nights[at].jobs, value)]
    if not counted:
        return Explanation("unknown", reason="its jobs don't tell their nodes")
    jobs, is_worse = [(job, bad) for _, job, bad in counted], np.array([at >= since for at, _, _ in counted])
    if len({nodes_of(job) for job, _ in jobs}) == 1:
        return Explanation("unknown", reason="all jobs ran on the same nodes")
    keys = [job.key for job, _ in jobs]
    every = _sample(jobs, keys)
    size = _growth(every, is_worse)
    if not size > 0:
        return Explanation("unknown", reason="the jobs that tell their nodes are no worse, or too few")
    parted = _sample(jobs, list(zip(keys, is_worse.tolist(), strict=True)))
    tried = [(one, _effects(one, looks=2)) for one in (replace(parted, on=parted.on & is_worse[:, None]), parted)]
    sample, effects = next((one for one in tried if any(each.is_slow for each in one[1])), tried[0])
    left = _growth_without(every, is_worse, sample.on, [each for each in effects if each.is_slow])
    if left < size / 2:
        return Explanation("explained", effects, size, left)
    fast = [each.node for each in effects if each.high < left / 2]
    on_fast = ~np.any(every.on[:, ~np.isin(every.nodes, fast)], axis=1)
    on_known = ~np.any(every.on[:, ~np.any(every.on[~is_worse], axis=0)], axis=1)
    told = on_fast & on_known
    if (
        2 * np.count_nonzero(told & is_worse) >= np.count_nonzero(is_worse)
        and _growth(every, is_worse, told) >= size / 2
    ):
        return Explanation("not explained", effects, size, left)
    other = np.count_nonzero(on_known & is_worse) < FEWEST
    why = "its jobs ran on other nodes than those before" if other else "too few jobs tell of nodes"
    return Explanation("unknown", effects, size, left, why)


def describe(explanation: Explanation) -> str:
    """Write whether nodes explain it, in words that end no sentence."""
    if not explanation.slow:
        return explanation.reason or "nodes don't explain it"
    left = math.expm1(explanation.without)
    rest = f"{text.percent(left)} is left" if left >= LEAST else "nothing is worse"
    them = "it" if len(explanation.slow) == 1 else "them"
    said = {"explained": "explained by nodes", "not explained": "nodes don't explain it, although some are slow"}
    words = said.get(explanation.outcome, "some nodes are slow, and others may be")
    return f"{words}: {describe_nodes(explanation.slow)}, without {them} {rest}"


def describe_nodes(slow: Sequence[NodeEffect]) -> str:
    """Name nodes and their effects; nodes whose jobs were always the same ones share theirs."""
    parts = []
    for (jobs, *logarithms), alike in groupby(slow, lambda one: (one.jobs, one.effect, one.low, one.high)):
        effect, low, high = (100 * math.expm1(each) for each in logarithms)
        names = " and ".join(text.clean(one.node, 80) for one in alike)
        parts.append(f"{names} ({effect:.1f} % slower, {low:.1f} to {high:.1f}, {text.plural(jobs, 'job')})")
    return ", ".join(parts)


def _counted(jobs: Iterable[NightJob], value: Value) -> list[tuple[NightJob, float]]:
    """Return the jobs that have a value and nodes, with their values."""
    return [(job, bad) for job in jobs if nodes_of(job) and (bad := value(job)) is not None]


def _sample(jobs: Sequence[tuple[NightJob, float]], strata: Sequence[object]) -> Sample:
    hosts = [nodes_of(job) for job, _ in jobs]
    nodes = tuple(sorted(frozenset().union(*hosts)))
    numbers = {each: at for at, each in enumerate(dict.fromkeys(strata))}
    on = np.array([[node in own for node in nodes] for own in hosts])
    return Sample(np.array([bad for _, bad in jobs]), np.array([numbers[each] for each in strata]), nodes, on, on)


def _growth(sample: Sample, is_worse: Flags, rows: Flags | None = None) -> float:
    """Return by how much jobs of worse nights are worse than others of their tests; NaN where FEWEST don't tell."""
    if rows is not None:
        sample, is_worse = sample.among(rows), is_worse[rows]
    apart = sample.centred(is_worse)
    tell = np.abs(apart) > SAME
    if min(np.count_nonzero(tell & is_worse), np.count_nonzero(tell & ~is_worse)) < FEWEST:
        return math.nan
    return float(apart @ sample.values / (apart @ apart))


def _growth_without(every: Sample, is_worse: Flags, on: Flags, slow: Sequence[NodeEffect]) -> float:
    """Return the growth of jobs on no slow node, or of all jobs less the effect of their slowest node."""
    effects = {each.node: each.effect for each in slow}
    lost = (on * np.array([effects.get(node, 0.0) for node in every.nodes])).max(axis=1)
    left = _growth(every, is_worse, ~np.any(every.on[:, np.isin(every.nodes, [*effects])], axis=1))
    return _growth(replace(every, values=every.values - lost), is_worse) if math.isnan(left) else left


def _effects(sample: Sample, looks: int = 1) -> tuple[NodeEffect, ...]:
    """Estimate the effect of each node that jobs enough tell of, the slowest first."""
    tried = [at for at in range(len(sample.nodes)) if _effect(sample, at, 1)]
    if not tried:
        return ()
    tests = looks * np.unique(sample.on[:, tried], axis=1).shape[1]
    slow = np.zeros(len(sample.nodes), dtype=bool)
    while True:
        rest = sample.among(~np.any(sample.on[:, slow], axis=1))
        found = {at: each for at in tried if not slow[at] and (each := _effect(rest, at, tests))}
        certainty = {at: each.effect / (each.effect - each.low) for at, each in found.items() if each.is_slow}
        if not certainty:
            break
        slow |= (rest.on == rest.on[:, [max(certainty, key=certainty.__getitem__)]]).all(axis=0)
    for at in map(int, np.flatnonzero(slow)):
        others = slow & (sample.on != sample.on[:, [at]]).any(axis=0)
        each = _effect(sample.among(~np.any(sample.on[:, others], axis=1)), at, tests) or _effect(sample, at, tests)
        found |= {at: each} if each else {}
    return tuple(sorted(found.values(), key=lambda each: (-each.effect, each.node)))


def _effect(sample: Sample, at: int, tests: int) -> NodeEffect | None:
    """Estimate the effect of a node by least squares within strata; None where too few jobs tell of it. The residuals
    of a run count as one, whose variance falls with its jobs. tests: intervals that share the chance to be wrong.
    """
    on, drawn, strata = sample.on[:, at], sample.drawn[:, at], sample.strata
    apart = sample.centred(on)
    tells = np.abs(apart) > SAME  # else all jobs of its stratum are on the node, or none is
    run = np.cumsum(np.diff(drawn, prepend=drawn[:1]))
    runs = int(run[-1]) + 1 if len(run) else 0
    jobs_on, jobs_off = np.count_nonzero(tells & on), np.count_nonzero(tells & ~on)
    if min(jobs_on, jobs_off) < FEWEST or len(np.unique(run[on])) < FEWEST_RUNS:
        return None
    values, square = sample.centred(sample.values), float(apart @ apart)
    effect = float(apart @ values) / square
    residuals = values - apart * effect
    cells = np.zeros((runs, int(strata.max()) + 1))
    np.add.at(cells, (run, strata), 1)
    jobs, of_stratum = cells.sum(axis=1), np.maximum(cells.sum(axis=0), 1)
    degrees_of_freedom = runs - 1 - float((cells**2 / of_stratum / jobs[:, None]).sum())  # less the means of strata
    if degrees_of_freedom < 1:
        return None
    variance = float((np.bincount(run, weights=residuals) ** 2 / jobs).sum()) / degrees_of_freedom
    half = (
        max(math.sqrt(variance), LEAST_SCALE)
        / math.sqrt(square)
        * float(stdtrit(degrees_of_freedom, 1 - (1 - CONFIDENCE) / 2 / tests))
    )
    in_most = 2 * np.count_nonzero(tells & on & (math.copysign(1, effect) * residuals > -abs(effect) / 2)) > jobs_on
    return NodeEffect(sample.nodes[at], int(np.count_nonzero(on)), effect, effect - half, effect + half, bool(in_most))
