"""Loss curves that claims are judged by.

A curve counts beside the one that the paper holds it to, where a contest with that trainer compared both, and else
beside the same training run serially, or of long ones with data parallelism alone. The suite's own limit, which is far
closer than the tolerance of a verdict, is asked too: where any curve breaks it, nothing is reproduced.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from engine.grid import Grid
from engine.published import select
from engine.result.gate import Interval
from engine.result.judges import curves, peers
from reports.frames.curves import KEY, SERIAL
from reports.frames.reproduction.samples import Asked, Place, Row, Sample, grouped, in_order, same_sort, setting
from reports.text import plural

PIPELINE = "Pipeline"
"""Word in the names of those tests of validation that have stages."""
REFERENCES = {"Megatron-LM": "megatron-core", "PyTorch DDP": "ddp"}
"""Trainers that papers hold their losses to, and the engine's peers of suites/validation.py."""
NETWORKS = {"GPT-125M": "gpt2-125m", "GPT-2 small": "gpt2-125m"}
"""Papers' names of networks that the catalogue has under another."""
LONG_SUITE = "suites/long_validation.py"


class Curve(NamedTuple):
    """Losses of one job beside a reference."""

    largest: float
    """Largest relative difference of two losses."""
    steps: int
    allowed: float | None
    """Limit of the suite; None for a number format of which none is known."""


def losses(asked: Asked) -> Sample | None:
    """Return the ratio of a parallel training's loss by that of its reference, where it is largest.

    Each job has its largest relative difference of all steps. The interval spans all jobs, as each has to be right. On
    the paper's machine its network counts alone, and as many steps as it prints. Of several settings the first counts
    that lacks nothing and has as many jobs as a verdict takes.
    """
    found = [*_beside_the_papers(asked), *_beside_own(asked)]
    if not found:
        return None
    fault = next((one.fault for one in found if one.fault), "")
    return min(found, key=lambda one: (bool(one.lack), one.jobs < peers.FEWEST_JOBS))._replace(fault=fault)


def _beside_the_papers(asked: Asked) -> list[Sample]:
    """List the samples beside the trainer that the paper names, by setting."""
    over = asked.number.over
    rows = [row for row in asked.evidence.equalities if row["peer"] == REFERENCES.get(over)]
    found = []
    for contests in _settings(asked, rows, ("partition", "dtype", "model", "grid", "sequences")):
        jobs = [job for row in contests for job in row["contests"] if job.ours.losses and job.peer.losses]
        steps, allowed = (min(row[key] for row in contests) for key in ("compared", "tolerance"))
        compared = [Curve(peers.difference(job)[0], int(steps), allowed) for job in jobs]
        found += [_sample(asked, compared, contests[0], f"beside {over}")] if compared else []
    return found


def _beside_own(asked: Asked) -> list[Sample]:
    """List the samples beside the engine's own training, by setting; a pipeline's where the claim is of one."""
    staged = any(PIPELINE in redo.only for redo in asked.claim.redo)
    rows = [row for row in asked.evidence.curves if row["largest"] == row["largest"]]
    rows = [row for row in rows if (Grid.parse(row["grid"]).stages > 1) == staged]
    over, found = asked.number.over, []
    for jobs in _settings(asked, rows, (*KEY, "grid")):
        first = jobs[0]
        allowed = curves.limit(first["dtype"], long=first["reference"] != SERIAL)
        compared = [Curve(row["largest"], int(row["compared"]), allowed) for row in jobs]
        named = f", not {over}" if over in REFERENCES else ""
        found.append(_sample(asked, compared, first, f"beside {first['reference']} training{named}"))
    return found


def _settings(asked: Asked, rows: Iterable[Row], keys: Sequence[str]) -> Iterator[list[Row]]:
    """Yield the rows of each setting on the machine that may answer, as Asked says which goes first."""
    mine = [row for row in rows if row["system"] == asked.machine and _is_meant(asked, row)]
    yield from in_order(grouped(mine, lambda row: tuple(str(row[key]) for key in keys)))


def _is_meant(asked: Asked, row: Row) -> bool:
    """Return whether a job is of the paper's network and devices; elsewhere any network of the same sort is meant."""
    if not asked.home:
        return same_sort(asked.network, row["model"])
    model, devices = asked.place
    return Place(NETWORKS.get(model, model), devices).has(row["model"], row["ranks"])


def _sample(asked: Asked, jobs: Sequence[Curve], row: Row, beside: str) -> Sample:
    ratios, steps = [1 + job.largest for job in jobs], min(job.steps for job in jobs)
    wanted = _steps(asked.claim.paper, asked.number.model) if asked.home else None
    lack = f"{steps:,} of the paper's {wanted:,} steps, which {LONG_SUITE} takes" if wanted and steps < wanted else ""
    if jobs[0].allowed is None:
        lack = f"the suite has no limit for losses in {row['dtype']}"
    of = f"{setting(row)}, {row['dtype']}, {plural(steps, 'step')} {beside}"
    return Sample(max(ratios), Interval(min(ratios), max(ratios)), len(jobs), of, lack, _fault(jobs, row))


def _fault(jobs: Sequence[Curve], row: Row) -> str:
    """Say how a curve breaks the suite's limit; "" if none does."""
    worst = max(jobs, key=lambda job: job.largest)
    if worst.allowed is None or worst.largest <= worst.allowed:
        return ""
    return f"losses of {setting(row)} differ by {worst.largest:.1e}, where the suite allows {worst.allowed:g}"


@cache
def _steps(paper: str, model: str) -> int | None:
    """Return the steps that the paper trains a network for; None where it prints none."""
    printed = select(paper=paper, metric="steps", model=model)
    return int(printed[0].value) if printed else None
