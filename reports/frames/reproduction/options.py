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
from reports.frames.contests import CONTEST
from reports.frames.optimisations import KIND
from reports.frames.overlaps import flags
from reports.frames.reproduction.contests import options_beside
from reports.frames.reproduction.samples import OURS, Asked, Evidence, Row
from reports.text import clean, plural
from reports.text import number as finite

TRAININGS = ("weak_scaling", "strong_scaling")
KINDS = {**dict.fromkeys(TRAININGS, "train"), "overlap_ablation": "ablation", "optimisations": KIND}
"""Kind of the results of the studies whose jobs have to have the paper's options. Sides of a contest have overlaps and
tuning of their own, so that its job's batch and number format count alone."""
CONTESTS = "baselines"
"""Study of the contests with other trainers."""
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
    found = _Others()
    for target in claim.targets:
        asked = Asked(evidence, claim, target, claim.machine)
        for study in dict.fromkeys(redo.suite for redo in claim.redo):
            for row in asked.rows(KINDS[study], study) if study in KINDS else ():
                if asked.place.has(row["model"], row["ranks"]):
                    found.add(row["run"], 1, _differing(asked, row))
            for row, differing in options_beside(asked) if study == CONTESTS else ():
                found.add(tuple(str(row[key]) for key in CONTEST), int(row["jobs"]), differing)
    return found.in_words()


class _Others:
    """Jobs with other options that count for no target."""

    def __init__(self) -> None:
        self._counted = set[object]()
        self._others: dict[object, tuple[int, tuple[str, ...]]] = {}

    def add(self, key: object, jobs: int, differing: tuple[str, ...]) -> None:
        """Add some jobs, with the options in which they differ from what a target asks for."""
        if differing:
            self._others.setdefault(key, (jobs, differing))
        else:
            self._counted.add(key)

    def in_words(self) -> str:
        left = [one for key, one in self._others.items() if key not in self._counted]
        if not left:
            return ""
        reasons = dict.fromkeys(clean(word, 60) for _, differing in left for word in differing)
        jobs = plural(sum(number for number, _ in left), "job")
        return f"{jobs} with other options left out: {', '.join(reasons)}"
