"""Overlaps, schedules and stages that claims are judged by, most of which took turns in one job."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise
from statistics import fmean, median

import pandas as pd

from engine.grid import Grid
from engine.overlap.flags import HIDDEN_ON
from engine.result.judges.bubble import ZERO
from engine.result.metrics import formula_bubble, share_hidden
from engine.result.schema.contest import OverlapSide, ScheduleSide, TrainingSide
from reports.frames.optimisations import GAINED, SIDE
from reports.frames.overlaps import KEY, NONE, flags
from reports.frames.reproduction.options import KINDS, of_paper
from reports.frames.reproduction.samples import (
    COLLECTIVES,
    Asked,
    Place,
    Row,
    Sample,
    divided,
    grouped,
    in_order,
    lead_of,
    of_counts,
    of_pairs,
    over_jobs,
    over_points,
    records,
    saved_of,
    setting,
)
from reports.frames.reproduction.scaling import points_between
from reports.frames.sides import Pool, Rounds
from reports.text import number as finite
from reports.text import plural

ALL_HIDDEN = 1e-4
"""Exposed share of a step, or of communication, below which all of it counts as hidden, as 0 has no ratio."""
EXPOSED: Mapping[str, Callable[[Row], float]] = {
    "exposed_s": lambda row: at_least(ALL_HIDDEN * row["time_s"], row["collectives_s"]),
    "communication_hidden": lambda row: at_least(ALL_HIDDEN, 1 - row["share_hidden"]),
}
"""Figures that are less where more communication is hidden, by the figure of the claim."""
BY_PLAN = "found by par4d plan"
"""Label of a grid that the performance model took; earlier results have none."""
LEADING = ("message-driven", "1f1b")
"""Schedules whose step stands for a pipeline's, the paper's own first."""


def at_least(floor: float, value: float) -> float:
    """Return a figure or its floor, whichever is more; NaN of one that wasn't recorded."""
    return value if math.isnan(value) else max(value, floor)


def _pool(asked: Asked, *overlaps: str) -> tuple[Pool, list[str], str] | None:
    """Return the first setting that ran these overlaps, their names there, and the setting in words.

    A flag that hides nothing on a grid is left out there, so that overlaps which differ in it alone are one.
    """
    for rows in _settings(asked, "overlap_ablation"):
        pool = Pool.of(asked.evidence.frame(rows), asked.evidence.frames.sides, "overlap")
        useful = _useful(rows[0]["grid"])
        wanted = [tuple(flag for flag in flags(overlap) or () if flag in useful) for overlap in overlaps]
        by_flags = {flags(name): name for name in reversed(list(pool.by_name))}
        if len(set(wanted)) == len(wanted) and set(wanted) <= set(by_flags):
            return pool, [by_flags[words] for words in wanted], setting(rows[0])
    return None


def _useful(grid: str) -> set[str]:
    """Return the flags that hide something on a grid."""
    sizes = Grid.parse(grid)
    return {flag for flag, axes in HIDDEN_ON.items() if any(sizes[axis] > 1 for axis in axes)}


def saved(asked: Asked) -> Sample | None:
    found = _pool(asked, asked.number.gained, asked.number.over or NONE)
    if found is None:
        return None
    pool, (gained, over), of = found
    ratio = of_pairs(_pairs(pool.rounds[gained], pool.rounds[over]), of)
    return saved_of(ratio) if ratio else None


def optimised(asked: Asked) -> Sample | None:
    """Return what a step of the optimisations saves over the one before it.

    On the paper's machine a range is of all of the paper's points in it, each of which is needed. A grid that the
    series fixes says nothing of the one that the performance model would take.
    """
    step = next((side for side, gained in GAINED.items() if gained == asked.number.gained), None)
    settings = _settings(asked, "optimisations")
    if step == "grid":
        settings = [rows for rows in settings if rows[0]["grid_is"] in ("", BY_PLAN)]
    if not (asked.home and isinstance(asked.number.devices, str)):
        return _step_saves(asked, step, settings)
    points = points_between(asked, asked.number)
    places = [Place(model, (devices, devices)) for devices, model in points]
    by_point = [[rows for rows in settings if place.has(rows[0]["model"], rows[0]["ranks"])] for place in places]
    return over_points([_step_saves(asked, step, mine) for mine in by_point])


def _step_saves(asked: Asked, step: str | None, settings: Sequence[list[Row]]) -> Sample | None:
    """Return what the first setting that has a step and the one before it says."""
    for rows in settings:
        pool = Pool.of(asked.evidence.frame(rows), asked.evidence.frames.sides, SIDE)
        before = {name: former for former, name in pairwise(pool.by_name)}
        if step in before:
            ratio = of_pairs(_pairs(pool.rounds[step], pool.rounds[before[step]]), setting(rows[0]))
            return saved_of(ratio) if ratio else None
    return None


def _settings(asked: Asked, study: str) -> list[list[Row]]:
    """List the jobs of each setting of a study that may answer, without those of other options than the paper's."""
    found = [of_paper(asked, rows) for rows in asked.settings(KINDS[study], study)]
    return [rows for rows in found if rows]


def _pairs(rounds: Rounds, against: Rounds) -> list[list[tuple[float, float]]]:
    """Return the rounds of each job with those of the base; a round that one of them lacks doesn't count."""
    return [
        [pair for pair in zip(times_s, against[run], strict=False) if not any(map(math.isnan, pair))]
        for run, times_s in rounds.items()
        if run in against
    ]


def less_exposed(asked: Asked) -> Sample | None:
    """Return by how much more communication one overlap leaves exposed than the next, by job."""
    comparison = asked.target.comparison
    found = _pool(asked, comparison.ahead, comparison.behind) if comparison else None
    if found is None:
        return None
    pool, names, of = found
    kind = COLLECTIVES.get(comparison.at) if comparison else None
    sides = asked.evidence.frames.sides.records

    def left(rows: pd.DataFrame) -> dict[int, float]:
        if kind is None:
            figures = [EXPOSED[asked.claim.by](row) for row in records(rows)]
        else:
            figures = [_exposed_of(kind, sides[at]) for at in rows.index]
        return dict(zip(rows["run"], figures, strict=True))

    ahead, behind = (left(pool.by_name[name]) for name in names)
    return _lead([(ahead[run], behind[run]) for run in ahead if run in behind], of)


def _exposed_of(kind: str, side: TrainingSide) -> float:
    """Return the share of a kind of collectives that is exposed; NaN where it wasn't recorded."""
    mine = [one for one in side.collectives if one.kind == kind] if isinstance(side, OverlapSide) else []
    if not mine or any(one.exposed_s is None or one.hidden_s is None for one in mine):
        return math.nan
    hidden = share_hidden(sum(one.hidden_s or 0.0 for one in mine), sum(one.exposed_s or 0.0 for one in mine))
    return math.nan if hidden is None else at_least(ALL_HIDDEN, 1 - hidden)


def _lead(pairs: Sequence[tuple[float, float]], of: str) -> Sample | None:
    """Return the lead of the smaller of two figures, ahead and behind, one pair a job."""
    ratio = over_jobs([behind / ahead for ahead, behind in pairs if ahead > 0], of)
    return lead_of(ratio) if ratio else None


def fewer_stages(asked: Asked) -> Sample | None:
    """Return by how much longer the pipeline's part of a step is with more stages of as many devices.

    Data parallelism takes the other devices. On another machine the pairs of neighbouring numbers of stages that it
    has stand for the paper's, the fewest first.
    """
    for by_stages in _by_stages(asked):
        sizes = sorted(by_stages)
        fewer, more = _stages(asked) if asked.home else _neighbours(asked, sizes)
        if fewer in by_stages and more in by_stages:
            ratio = divided(by_stages[more], by_stages[fewer], f"{by_stages[fewer].of}, {more} stages over {fewer}")
            return lead_of(ratio)
    return None


def idle(asked: Asked) -> Sample | None:
    """Return the part of a step that stages wait under a schedule beyond what a zero bubble may leave.

    Without stages nothing waits: that is ahead where a schedule's stages wait for longer than those of a schedule that
    counts as one without a bubble (engine/result/judges/bubble.py).
    """
    comparison = asked.target.comparison
    if comparison is None or comparison.ahead != "no stages":
        return None
    table = asked.evidence.frames.sides.table
    for jobs in asked.settings("pipeline", "pipeline", (*KEY, "disturbed")):
        mine = table[table["run"].isin([job["run"] for job in jobs]) & (table["name"] == comparison.behind.lower())]
        idle, allowed = mine["idle"].dropna(), _zero_bubble(jobs[0])
        if len(idle) and not math.isnan(allowed) and not jobs[0]["disturbed"]:
            return of_counts([float(share) - allowed for share in idle], setting(jobs[0]))
    return None


def _zero_bubble(job: Row) -> float:
    """Return the largest part of a step that stages wait in a zero bubble; NaN of unknown micro-batches."""
    grid = Grid.parse(job["grid"])
    micro_batches = finite(job["batch_size"]) / grid.batch_split / finite(job["micro_batch"])
    if not micro_batches >= 1:
        return math.nan
    waits_by_work = ZERO * formula_bubble(grid.stages, micro_batches)
    return float(waits_by_work / (1 + waits_by_work))


def _stages(asked: Asked) -> tuple[int, int]:
    comparison = asked.target.comparison
    words = (comparison.ahead, comparison.behind) if comparison else ("0", "0")
    fewer, more = (int(found.group()) if (found := re.match(r"\d+", word)) else 0 for word in words)
    return fewer, more


def _neighbours(asked: Asked, sizes: Sequence[int]) -> tuple[int, int]:
    every = sorted(one.comparison.ahead for one in asked.claim.targets if one.comparison)
    by_fewest = sorted(every, key=lambda word: int(re.sub(r"\D", "", word) or 0))
    place = by_fewest.index(asked.target.comparison.ahead) if asked.target.comparison else 0
    return (sizes[place], sizes[place + 1]) if place + 1 < len(sizes) else (0, 0)


def _by_stages(asked: Asked) -> list[dict[int, Sample]]:
    """Return the pipeline's seconds by number of stages, of each set of points that differ in stages and data alone."""
    rows = [row for row in asked.rows("pipeline", "pipeline") if not row["disturbed"] and _is_stages_and_data(row)]
    alike = ("series", "model", "ranks", "batch_size", "dtype", "partition", "checkpointing")
    found = []
    for points in in_order(grouped(rows, lambda row: tuple(str(row[key]) for key in alike))):
        by_grid = grouped(points, lambda row: row["grid"])
        samples = {Grid.parse(jobs[0]["grid"]).stages: _pipeline_s(asked, jobs) for jobs in by_grid}
        found.append({stages: sample for stages, sample in samples.items() if sample is not None})
    return found


def _is_stages_and_data(row: Row) -> bool:
    grid = Grid.parse(row["grid"])
    return grid.stages * grid.model_replicas == grid.size


def _pipeline_s(asked: Asked, jobs: Sequence[Row]) -> Sample | None:
    """Return what stages wait and work in a step, the mean of all stages, of older results the whole step."""
    sides = asked.evidence.frames.sides
    for schedule in LEADING:
        mine = sides.table[sides.table["run"].isin([job["run"] for job in jobs]) & (sides.table["name"] == schedule)]
        known = [(sides.records[at], time_s) for at, time_s in zip(mine.index, mine["time_s"], strict=True)]
        values = [_part(side, time_s) for side, time_s in known if isinstance(side, ScheduleSide)]
        if values:
            return over_jobs(values, f"{jobs[0]['model']}, {plural(int(jobs[0]['ranks']), 'device')}, {schedule}")
    return None


def _part(side: ScheduleSide, time_s: float) -> float:
    stages = [
        median(idle + work for idle, work in zip(chain(*stage.idle_s), chain(*stage.work_s), strict=False))
        for stage in side.stages
        if any(stage.idle_s) and any(stage.work_s)
    ]
    return fmean(stages) if stages else time_s
