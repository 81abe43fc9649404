"""A site's own thresholds beside what its machine measured: each on the layout of its point that stood best.

Layouts of as many jobs as an outcome takes come first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from engine.errors import nearest
from engine.result import gate
from engine.result.judges.acceptance import Accepted, accept
from engine.result.judges.peers import FEWEST_JOBS
from reports.frames.frame import Frames
from reports.frames.reproduction.samples import LAYOUT, Row, Sample, grouped, of_counts, over_jobs, records, setting
from reports.text import plural
from systems.acceptance import METRICS, Acceptance, Metric, Threshold


@dataclass(frozen=True, slots=True)
class Checked:
    """Threshold with its outcome and what it rests on."""

    system: str
    threshold: Threshold
    accepted: Accepted
    sample: Sample | None = None

    @property
    def outcome(self) -> gate.Outcome:
        return self.accepted.outcome


def check(frames: Frames, known: Iterable[Acceptance], system: str = "") -> list[Checked]:
    """Judge thresholds by what was measured. system: those of one alone; frames: of everything, with peaks."""
    runs = frames.runs
    rows = records(runs[runs["variant"] == ""])
    return [
        _checked(rows, one.system, threshold)
        for one in known
        if system in ("", one.system)
        for threshold in one.thresholds
    ]


def _checked(rows: list[Row], system: str, threshold: Threshold) -> Checked:
    mine = [row for row in rows if row["system"] == system and row["study"] == threshold.suite]
    every = [row for row in mine if point_of(row) == threshold.point]
    of_point = [row for row in every if row["status"] == "ok"]
    metric = METRICS[threshold.metric]
    sample = None
    layouts = [
        jobs for jobs in grouped(of_point, lambda row: tuple(str(row[key]) for key in LAYOUT)) if _known(jobs, metric)
    ]
    if layouts:
        telling = [jobs for jobs in layouts if len(_known(jobs, metric)) >= FEWEST_JOBS] or layouts
        best = (max if threshold.at_least is not None else min)(telling, key=lambda jobs: median(_known(jobs, metric)))
        values = _known(best, metric)
        sample = (over_jobs if min(values) > 0 else of_counts)(values, _setting(best[0]))
    limits = {"at_least": threshold.limit if threshold.at_least is not None else None}
    limits["at_most"] = threshold.limit if threshold.at_most is not None else None
    accepted = accept(sample.interval if sample else None, sample.jobs if sample else 0, **limits)
    if accepted.outcome == "pass" and (failed := len(every) - len(of_point)):
        accepted = accepted._replace(outcome="undecided", why=f"{plural(failed, 'job')} of it failed")
    if sample is None and mine:
        points = sorted({point_of(row) for row in mine})
        missing = f"no {threshold.metric} of {threshold.point}" if of_point else nearest(threshold.point, points)
        accepted = accepted._replace(why=f"{accepted.why}: {missing}")
    return Checked(system, threshold, accepted, sample)


def _known(jobs: list[Row], metric: Metric) -> list[float]:
    values = [float(row[metric.column]) for row in jobs]
    return [value for value in values if value > 0 or (metric.may_be_zero and value == 0)]


def _setting(row: Row) -> str:
    return setting(row) if row["model"] else f"{row['dtype']}, {plural(int(row['ranks']), 'device')}"


def point_of(row: Row) -> str:
    """Name a job's point: series, devices and model, or the number format of one that has none."""
    return f"{row['series'] or row['system']}-{row['ranks']}-{row['model'] or row['dtype']}"
