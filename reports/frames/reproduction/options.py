"""Options that a job on the paper's machine has to have to be the paper's point, and jobs that have others.

What a number doesn't print its paper may (engine/published/conditions). A paper that tells nothing of tuned matrix
products has none.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from engine.published import select
from engine.published.claims import Claim, Target
from engine.published.conditions import TUNED, conditions_of
from reports.frames.optimisations import KIND
from reports.frames.overlaps import flags
from reports.frames.reproduction.samples import OURS, Asked, Evidence, Row
from reports.text import clean, plural
from reports.text import number as finite

TRAININGS = ("weak_scaling", "strong_scaling")
KINDS = {**dict.fromkeys(TRAININGS, "train"), "overlap_ablation": "ablation", "optimisations": KIND}
"""Kind of the results of the studies whose jobs have to have the paper's options. Sides of a contest have overlaps and
tuning of their own, so that its job's batch and number format count alone."""
NOT_TUNED = "not tuned"


class Options(NamedTuple):
    """Options of a point of the paper; one that no paper prints is None."""

    batch_tokens: int | None = None
    dtype: str | None = None
    overlap: str | None = None
    tuned: bool | None = None

    def differing(self, row: Row) -> tuple[str, ...]:
        """Return the options of a job that are others, in words."""
        tokens = finite(row["batch_size"] or None) * float(row["sequence"])
        found = []
        if self.batch_tokens not in (None, tokens):
            found.append(_batch(row))
        if self.dtype not in (None, row["dtype"]):
            found.append(str(row["dtype"]))
        if row["kind"] == "train":
            if self.overlap is not None and flags(self.overlap) != flags(row["overlap"]):
                found.append(f"overlap {row['overlap'] or 'unknown'}")
            if self.tuned not in (None, is_tuned(row)):
                found.append(TUNED if is_tuned(row) else NOT_TUNED)
        return tuple(found)


def _batch(row: Row) -> str:
    sequences = finite(row["batch_size"] or None)
    return plural(int(sequences), "sequence") if sequences == sequences else "an unknown batch"


def is_tuned(row: Row) -> bool:
    """Return whether a job tuned its matrix products."""
    return "tune_matmul" in str(row["tuning"]).split(", ")


def options_of(claim: Claim, target: Target, devices: int) -> Options:
    """Return the options of the paper's own point of a target on as many devices."""
    found = _printed(claim.paper, claim.system, devices)
    if any(NOT_TUNED in number.what for number in target.readings):
        return found._replace(tuned=False)
    return found


@cache
def _printed(paper: str, system: str, devices: int) -> Options:
    """Return what the paper prints of its own points on as many devices of a system, or of all of its runs there."""
    of_point = [one for one in select(paper=paper, devices=devices) if one.framework in OURS]
    of_point = [one for one in of_point if one.system in ("", system)]
    found = {}
    for name in ("batch_tokens", "dtype", "overlap"):
        values = {getattr(one, name) for one in of_point} - {None, ""}
        found[name] = next(iter(values)) if len(values) == 1 else None
    known = conditions_of(paper, system)
    if known is None:
        return Options(**found)
    dtype, overlap = found["dtype"] or known.precision, found["overlap"] or known.overlap
    return Options(found["batch_tokens"], dtype or None, overlap or None, known.products == TUNED)


def of_paper(asked: Asked, rows: Iterable[Row]) -> list[Row]:
    """List the jobs that have the paper's options where they ran on its machine; all of them elsewhere."""
    return [row for row in rows if not asked.home or not _differing(asked, row)]


def _differing(asked: Asked, row: Row) -> tuple[str, ...]:
    return options_of(asked.claim, asked.target, int(row["ranks"])).differing(row)


def left_out(evidence: Evidence, claim: Claim) -> str:
    """Say how many jobs of a claim's points on the paper's machine have other options, and which; "" of none."""
    counted, others = set[object](), dict[object, tuple[str, ...]]()
    for target in claim.targets:
        asked = Asked(evidence, claim, target, claim.machine)
        for study in dict.fromkeys(redo.suite for redo in claim.redo if redo.suite in KINDS):
            for row in asked.rows(KINDS[study], study):
                if asked.place.has(row["model"], row["ranks"]):
                    differing = _differing(asked, row)
                    others.setdefault(row["run"], differing) if differing else counted.add(row["run"])
    left = [differing for run, differing in others.items() if run not in counted]
    if not left:
        return ""
    reasons = dict.fromkeys(clean(word, 60) for differing in left for word in differing)
    return f"{plural(len(left), 'job')} with other options left out: {', '.join(reasons)}"
