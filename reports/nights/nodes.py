"""Slow nodes: by how much, and whether they explain that nights are worse.

    value = how_bad(figures, jobs_before)             figures: (Key, name) of an episode or a state
    explanation = explain(nights, worse, value)       nights: all up to tonight; worse: positions of its nights in them
    describe(explanation)                             "explained by nodes: x1203 (6.0 % slower, ...), ..."

An episode's worse nights follow on each other; those of a state that returns don't. The effect of a node is the mean of
jobs with it less that of jobs without it, among jobs of one test (and on one side of an episode's beginning, so that
a node that the queue draws more often since then isn't blamed for what began). Its interval has Student's t by runs:
jobs one after the other with the node, or without it, count as one, because what else moves the machine lasts for
several of them. Bonferroni's correction is over all nodes that are tried. A job of several nodes is as slow as its
slowest one: the slowest node is found first, and the next among the jobs without it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from engine.result.gate import CONFIDENCE
from reports import text
from reports.nights.noise import LEAST_SCALE, Floats
from reports.read.history import NODES, Night, NightJob
from systems.references import LEAST, Key, worse_by

Flags: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]
Value: TypeAlias = Callable[[NightJob], float | None]
"""How bad a job is, as a logarithm relative to what is usual; None of a job that doesn't count."""

FEWEST = 3
"""Fewest jobs with a node, and without it, that tell of it."""
FEWEST_RUNS = 2
"""Fewest times that a node comes and goes: what one run of jobs has may be the time's, not the node's."""
BEFORE = 60
"""Nights before the first worse one that are looked at."""
MOST_SLOW = 0.8
"""Most of the jobs that may be on slow nodes: those of an episode on all nodes are no slow nodes'."""
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
    """The same of jobs without the slow nodes, or else without the node that leaves least."""
    reason: str = ""
    """Why it is unknown."""

    @property
    def slow(self) -> tuple[NodeEffect, ...]:
        return tuple(each for each in self.effects if each.is_slow)


@dataclass(frozen=True, slots=True)
class Sample:
    """Jobs in their order."""

    values: Floats
    strata: Numbers
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

    def without(self, columns: Flags) -> "Sample":
        """Leave out the jobs on any of these nodes."""
        return self.among(~np.any(self.on[:, columns], axis=1))


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


def node_effects(jobs: Iterable[NightJob], value: Value, looks: int = 1) -> tuple[NodeEffect, ...]:
    """Estimate the effects of nodes by jobs in their order, the slowest first: of those that jobs enough tell of.

    looks: number of such samples that share the chance to be wrong.
    """
    counted = _counted(jobs, value)
    return _effects(_sample(counted, [job.key for job, _ in counted]), looks) if counted else ()


def explain(nights: Sequence[Night], worse: Collection[int], value: Value) -> Explanation:
    """Tell whether nodes explain that nights are worse: some are slow, and without their jobs less than half is left.

    worse: positions of those nights.
    """
    first = max(0, min(worse, default=0) - BEFORE)
    counted = [(at, *one) for at in range(first, len(nights)) for one in _counted(nights[at].jobs, value)]
    if not counted:
        return Explanation("unknown", reason="its jobs don't tell their nodes")
    jobs, is_worse = [(job, bad) for _, job, bad in counted], np.array([at in worse for at, _, _ in counted])
    if len({nodes_of(job) for job, _ in jobs}) == 1:
        return Explanation("unknown", reason="all jobs ran on the same nodes, so nothing tells of nodes")
    keys = [job.key for job, _ in jobs]
    every = _sample(jobs, keys)
    size = _growth(every, is_worse)
    if not size > 0:
        return Explanation("unknown", reason="the jobs that tell their nodes are no worse, or too few")
    if any(later - earlier > 1 for earlier, later in pairwise(sorted(worse))):
        samples = [every]
    else:
        parted = _sample(jobs, list(zip(keys, is_worse.tolist(), strict=True)))
        samples = [replace(parted, on=parted.on & is_worse[:, None]), parted]
    tried = [_effects(sample, looks=len(samples)) for sample in samples]
    return _judge(every, is_worse, size, next((each for each in tried if any(one.is_slow for one in each)), tried[0]))


def _judge(every: Sample, is_worse: Flags, size: float, effects: tuple[NodeEffect, ...]) -> Explanation:
    """Judge by the effects of nodes. They don't explain it if half or more of it is left without the slow ones, or
    without any one; on the nodes of other nights alone, as new nodes can't be told from new nights; and if no other
    node may be slow enough: that is by the share of jobs that would meet slow nodes if each drew its nodes by chance.
    """
    slow = [each for each in effects if each.is_slow]
    if slow:
        left = _growth_without(every, is_worse, slow)
    else:
        left = float(np.min([_growth(every.among(~one), is_worse[~one]) for one in every.on.T if one[is_worse].any()]))
    if slow and left < size / 2:
        return Explanation("explained", effects, size, left)
    new = ~np.any(every.on[~is_worse], axis=0)
    known = ~np.any(every.on[:, new], axis=1)
    if np.count_nonzero(known & is_worse) < FEWEST:
        return Explanation("unknown", effects, size, left, "its jobs ran on other nodes than those of other nights")
    of_job = float(np.median(np.count_nonzero(every.on[is_worse], axis=1)))
    enough = (left if slow else size) * min(1.0, (1 - MOST_SLOW) ** (1 - 1 / of_job) / MOST_SLOW)
    told = np.any(every.on[is_worse][:, np.isin(every.nodes, [each.node for each in effects])], axis=1)
    if (
        np.minimum(left, _growth(every.among(known), is_worse[known])) >= size / 2
        and 2 * np.count_nonzero(told) >= len(told)
        and all(each.high < enough for each in effects if not each.is_slow)
    ):
        return Explanation("not explained", effects, size, left)
    return Explanation("unknown", effects, size, left, "too few jobs tell of nodes, one of which may be slow")


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


def nodes_of(job: NightJob) -> frozenset[str]:
    """Return the names of the nodes that a job ran on; none where it doesn't tell."""
    return frozenset(filter(None, job.state.get(NODES, "").split(", ")))


def _counted(jobs: Iterable[NightJob], value: Value) -> list[tuple[NightJob, float]]:
    """Return the jobs that have a value and nodes, with their values."""
    return [(job, bad) for job in jobs if nodes_of(job) and (bad := value(job)) is not None]


def _sample(jobs: Sequence[tuple[NightJob, float]], strata: Sequence[object]) -> Sample:
    hosts = [nodes_of(job) for job, _ in jobs]
    nodes = tuple(sorted(frozenset().union(*hosts)))
    numbers = {each: at for at, each in enumerate(dict.fromkeys(strata))}
    on = np.array([[node in own for node in nodes] for own in hosts])
    return Sample(np.array([bad for _, bad in jobs]), np.array([numbers[each] for each in strata]), nodes, on, on)


def _centred(columns: Floats, strata: Numbers) -> Floats:
    """Subtract from each column of jobs the mean of its stratum."""
    member = (strata[:, None] == np.arange(strata.max(initial=0) + 1)).astype(np.float64)
    centred: Floats = columns - member @ (member.T @ columns / np.maximum(member.sum(axis=0), 1)[:, None])
    return centred


def _growth(sample: Sample, is_worse: Flags) -> float:
    """Return by how much jobs of worse nights are worse than others of their tests; NaN where FEWEST don't tell."""
    apart = _centred(is_worse[:, None].astype(np.float64), sample.strata)[:, 0]
    tell = np.abs(apart) > SAME
    if min(np.count_nonzero(tell & is_worse), np.count_nonzero(tell & ~is_worse)) < FEWEST:
        return math.nan
    return float(apart @ sample.values / (apart @ apart))


def _growth_without(sample: Sample, is_worse: Flags, slow: Sequence[NodeEffect]) -> float:
    """Return by how much jobs of worse nights are worse without slow nodes: by those that ran on none of them, or else
    by all, less the effect of their slowest node.
    """
    effects = {each.node: each.effect for each in slow}
    lost = np.array([effects.get(node, 0.0) for node in sample.nodes])
    rest: Flags = ~np.any(sample.on[:, lost > 0], axis=1)
    if np.count_nonzero(rest & is_worse) < FEWEST:
        return _growth(replace(sample, values=sample.values - (sample.on * lost).max(axis=1)), is_worse)
    if np.count_nonzero(rest & ~is_worse) < FEWEST:
        rest |= ~is_worse
    return _growth(sample.among(rest), is_worse[rest])


class Fit(NamedTuple):
    """Effect of each node alone, by column; NaN where too few jobs tell of it."""

    effect: Floats
    error: Floats
    """Standard error."""
    degrees_of_freedom: Floats
    in_most: Flags
    """NodeEffect.in_most."""

    @property
    def tells(self) -> Flags:
        return np.isfinite(self.effect)


def _fit(sample: Sample) -> Fit:
    """Fit by least squares within strata; the residuals of a run count as one, whose variance falls with its jobs."""
    on, nodes = sample.on, len(sample.nodes)
    apart, values = (_centred(columns, sample.strata) for columns in (on.astype(np.float64), sample.values[:, None]))
    square = np.maximum((apart**2).sum(axis=0), SAME)
    effect = (apart * values).sum(axis=0) / square

    starts = np.vstack([np.ones((1, nodes), dtype=bool), sample.drawn[1:] != sample.drawn[:-1]])
    run, node = np.cumsum(starts.T) - 1, np.repeat(np.arange(nodes), starts.sum(axis=0))  # column by column
    residuals = values - apart * effect
    jobs, sums, on_it = (np.bincount(run, weights=each.T.ravel()) for each in (np.ones(on.shape), residuals, on))
    strata = sample.strata.max() + 1
    cells = np.bincount(run * strata + np.tile(sample.strata, nodes), minlength=len(jobs) * strata).reshape(-1, strata)
    of_stratum = np.maximum(np.bincount(sample.strata), 1)
    taken = (cells**2 / of_stratum).sum(axis=1) / jobs  # degrees of freedom that the means of strata take
    degrees_of_freedom = np.bincount(node, weights=1 - taken).astype(np.float64) - 1
    variance = np.bincount(node, weights=sums**2 / jobs) / np.maximum(degrees_of_freedom, 1)

    tells = np.abs(apart) > SAME  # else all jobs of its stratum are on the node, or none is
    jobs_on, jobs_off = (tells & on).sum(axis=0), (tells & ~on).sum(axis=0)
    in_most = 2 * (tells & on & (np.sign(effect) * residuals > -np.abs(effect) / 2)).sum(axis=0) > jobs_on
    fewest = np.minimum(jobs_on, jobs_off)
    enough = (fewest >= FEWEST) & (np.bincount(node, weights=on_it > 0) >= FEWEST_RUNS) & (degrees_of_freedom >= 1)
    error = np.maximum(np.sqrt(variance), LEAST_SCALE) / np.sqrt(square)
    unknown = np.where(enough, 0.0, np.nan)
    return Fit(effect + unknown, error, degrees_of_freedom, in_most)


def _effects(sample: Sample, looks: int = 1) -> tuple[NodeEffect, ...]:
    """Estimate the effect of each node that jobs enough tell of, the slowest first."""
    fit = _fit(sample)
    if not fit.tells.any():
        return ()
    tests = looks * np.unique(sample.on[:, fit.tells], axis=1).shape[1]
    slow, found = np.zeros(len(sample.nodes), dtype=bool), dict[int, NodeEffect]()
    while True:
        rest = sample.without(slow)
        fit = _fit(rest)
        found = {at: each for at, each in found.items() if slow[at]} | _as_effects(sample, fit, tests, fit.tells)
        z = [fit.effect[at] / fit.error[at] if fit.tells[at] and found[at].is_slow else 0.0 for at in range(len(slow))]
        if not any(z):
            break
        slow |= (rest.on == rest.on[:, [np.argmax(z)]]).all(axis=0)
    for at in np.flatnonzero(slow):
        others = slow & (sample.on != sample.on[:, [at]]).any(axis=0)
        fit = _fit(sample.without(others))
        found |= _as_effects(sample, fit, tests, fit.tells & (np.arange(len(slow)) == at))
    return tuple(sorted(found.values(), key=lambda each: (-each.effect, each.node)))


def _as_effects(sample: Sample, fit: Fit, tests: int, columns: Flags) -> dict[int, NodeEffect]:
    """Return the effects of these columns. tests: intervals that share the chance to be wrong."""
    half = fit.error * stdtrit(fit.degrees_of_freedom, 1 - (1 - CONFIDENCE) / 2 / tests)
    low, high, jobs, found = fit.effect - half, fit.effect + half, sample.on.sum(axis=0), dict[int, NodeEffect]()
    for at in map(int, np.flatnonzero(columns)):
        effect, most = float(fit.effect[at]), bool(fit.in_most[at])
        found[at] = NodeEffect(sample.nodes[at], int(jobs[at]), effect, float(low[at]), float(high[at]), most)
    return found
