"""Samples: one figure of one setting over jobs, with its interval, and what claims ask for: a point on a machine."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import pandas as pd

from engine.published import Number, select
from engine.published.claims import Claim, Target
from engine.result import gate
from engine.result.gate import CONFIDENCE, NOTHING_KNOWN, Interval
from engine.result.judges.peers import FEWEST_JOBS
from engine.result.metrics import paired
from reports.frames.contests import UNEQUAL, over_one_network
from reports.frames.contests import points as contest_points
from reports.frames.curves import compare
from reports.frames.evaluations import beside_data, with_last
from reports.frames.frame import Frames
from reports.frames.overlaps import KEY
from reports.text import plural

Row = Mapping[str, Any]
ANYTHING = Interval(-math.inf, math.inf)
"""Interval of a difference of which nothing is known."""
LAYOUT = ("ranks", "grid", "micro_batch", "overlap", "tuning", "batch_size", "checkpointing", "dtype", "partition")
"""Columns that tell one layout of a training from another."""
U_NET = "unet"
OURS = frozenset({"AxoNN", "Par4D/AxoNN"})
"""The papers' names of what the engine is."""
COLLECTIVES = {"all-gathers": "all_gather", "reduce-scatters": "reduce_scatter"}
"""Kinds of collectives that a comparison is of, in the papers' words and the results'."""
_PLAIN = re.compile(r"[^a-z0-9]")
_DEVICES = re.compile(r"(\d+)(?: to (\d+))? (?:GPU|GCD)s?\b")
"""Place of a comparison that names devices alone, or a range of them."""
_ADJUSTED = "adjusted"
"""End of the name of a network whose shape follows from a rival's layout: it stands for the printed one."""


class Sample(NamedTuple):
    """Figure over the jobs of one setting, in the unit of the claim's kind."""

    value: float
    interval: Interval
    jobs: int
    of: str
    """Setting in words."""
    lack: str = ""
    """Measurements without which it can't tell, whatever its interval is; "" where it has all."""
    fault: str = ""
    """Reason why it doesn't reproduce anything, though its interval may lie within the tolerance."""


class Place(NamedTuple):
    """Model and devices of a published number or comparison; "" and none where it names none."""

    model: str = ""
    devices: tuple[int, int] | None = None
    """Fewest and most."""

    def has(self, model: object, ranks: float) -> bool:
        """Return whether a model on as many ranks is meant. Of a range of models the ranks decide."""
        meant = plain(self.model)
        same = same_sort(self.model, model) if "to" in self.model.split() else meant in ("", plain(str(model)))
        return same and (self.devices is None or self.devices[0] <= ranks <= self.devices[1])


def plain(model: str) -> str:
    """Write a model's name as papers and catalogue both have it: GPT-5B, 5B, gpt-5b and gpt-5b-adjusted are 5b."""
    return _PLAIN.sub("", model.lower()).removeprefix("gpt").removesuffix(_ADJUSTED)


def same_sort(model: str, other: object) -> bool:
    """Return whether both are U-Nets, or neither is."""
    return plain(model).startswith(U_NET) == plain(str(other)).startswith(U_NET)


def place_of(target: Target) -> Place:
    """Read a target's model and devices: fields of a number, or such words of a comparison as GPT-5B on 64, 48 GPUs."""
    if target.comparison is not None and target.comparison.at in COLLECTIVES:
        return Place()
    if target.comparison is not None and (alone := _DEVICES.match(target.comparison.at)):
        return Place(devices=(int(alone[1]), int(alone[2] or alone[1])))
    if target.comparison is not None:
        model, _, devices = target.comparison.at.partition(" on ")
        return Place(model, (int(devices), int(devices)) if devices.isdigit() else None)
    number = target.readings[0]
    return Place(number.model, span_of(number))


def span_of(number: Number) -> tuple[int, int] | None:
    """Return the fewest and the most devices of a number, whose range is written as 64 to 1024."""
    if number.devices is None:
        return None
    found = [int(part) for part in re.findall(r"\d+", str(number.devices))]
    return (min(found), max(found)) if found else None


@cache
def sizes_of(paper: str, system: str) -> Mapping[int, str]:
    """Return the devices of the paper's own weak scaling on a system, each with its model."""
    own = [one for one in select(paper=paper, system=system, study="weak_scaling") if one.batch_tokens]
    return {one.devices: one.model for one in own if one.framework in OURS and isinstance(one.devices, int)}


def over_jobs(values: Iterable[float], of: str) -> Sample | None:
    """Return the sample of positive values, one a job, by Student's t of their logarithms; None of no job."""
    known = [float(value) for value in values if math.isfinite(value) and value > 0]
    return Sample(median(known), gate.over_jobs(known), len(known), of) if known else None


def of_counts(values: Sequence[float], of: str) -> Sample | None:
    """Return the sample of values that may be 0, one a job, by Student's t."""
    if not values:
        return None
    if len(values) < FEWEST_JOBS:
        return Sample(values[0], ANYTHING, 1, of)
    reach = gate.student(len(values) - 1, CONFIDENCE) * stdev(values) / math.sqrt(len(values))
    return Sample(mean(values), Interval(mean(values) - reach, mean(values) + reach), len(values), of)


def divided(one: Sample, other: Sample, of: str) -> Sample:
    """Return the ratio of two samples that weren't taken in pairs, from the ends that make it smallest and largest."""
    low, high = one.interval.low, one.interval.high
    ends = Interval(low / other.interval.high, high / other.interval.low if other.interval.low > 0 else math.inf)
    return Sample(one.value / other.value, ends, min(one.jobs, other.jobs), of)


def hull(samples: Sequence[Sample]) -> Sample:
    """Return the range of one sample or more, in which a paper says that all of them lie."""
    ends = Interval(min(one.interval.low for one in samples), max(one.interval.high for one in samples))
    of = samples[0].of if len(samples) == 1 else f"{len(samples)} points"
    return Sample(median(one.value for one in samples), ends, min(one.jobs for one in samples), of)


def over_points(points: Sequence[Sample | None], join: Callable[[Sequence[Sample]], Sample] = hull) -> Sample | None:
    """Join the samples of all points that a number is of, None for a point that wasn't measured. Where one of several
    hasn't as many jobs as a verdict takes, the sample says so.
    """
    known = [one for one in points if one is not None]
    if not known:
        return None
    told = sum(one.jobs >= FEWEST_JOBS for one in known)
    if told == len(points) or len(points) == 1:
        return join(known)
    return join(known)._replace(lack=f"{told} of {plural(len(points), 'point')} with {FEWEST_JOBS} jobs or more")


def lead_of(ratio: Sample) -> Sample:
    """Return by how much the one that is said to be ahead is: of the other's figure by its own, less 1."""
    low, high = ratio.interval
    return ratio._replace(value=ratio.value - 1, interval=Interval(low - 1, high - 1))


def saved_of(ratio: Sample) -> Sample:
    """Return the part of the time that a paired ratio of times saves."""
    low, high = ratio.interval
    return ratio._replace(value=1 - ratio.value, interval=Interval(1 - high, 1 - low))


def inverse_of(ratio: Sample) -> Sample:
    low, high = ratio.interval
    return ratio._replace(value=1 / ratio.value, interval=Interval(1 / high, 1 / low if low > 0 else math.inf))


def of_ends(value: float, low: float, high: float, jobs: int, of: str) -> Sample | None:
    """Return the sample of a ratio as frames have it, whose ends are NaN where nothing is known of them."""
    if value != value:
        return None
    return Sample(value, Interval(low, high) if low == low and high == high else NOTHING_KNOWN, jobs, of)


def of_pairs(jobs: Sequence[Sequence[tuple[float, float]]], of: str) -> Sample | None:
    """Return the sample of a paired ratio of rounds; jobs without a round don't count."""
    timed = [rounds for rounds in jobs if rounds]
    if not timed:
        return None
    found = paired(timed)
    return Sample(found.ratio, found.interval, len(timed), of)


class Evidence:
    """Everything that was measured, found by machine and study."""

    def __init__(self, frames: Frames, machine: str = "") -> None:
        """Take the frames of everything, whose runs have their peaks, or what one machine measured of it."""
        self.frames = frames
        self._machine = machine
        runs = frames.runs
        self._ok = runs[(runs["status"] == "ok") & (runs["variant"] == "")]
        self._rows = defaultdict[tuple[str, str], list[Row]](list)
        for row in records(self._ok.assign(run=self._ok.index)):
            self._rows[row["system"], row["kind"]].append(row)

    @cached_property
    def machines(self) -> list[str]:
        """Names of the systems that measured something, but for unnamed ones."""
        runs = self.frames.runs
        contests = [*self.contests, *self.equalities]
        known = {*runs.loc[runs["status"] == "ok", "system"], *(row["system"] for row in contests)}
        return sorted(name for name in known - {""} if self._machine in ("", name))

    def rows(self, machine: str, kind: str) -> list[Row]:
        """List good jobs of a kind on a machine, without those of a variant."""
        return self._rows.get((machine, kind), [])

    def frame(self, rows: Iterable[Row]) -> pd.DataFrame:
        """Return these rows as the frame of runs has them, oldest first."""
        return self._ok.loc[[row["run"] for row in rows]].sort_values("end", kind="stable")

    @cached_property
    def contests(self) -> list[Row]:
        """Contests with other libraries that ended well, over the same network."""
        of_study = self.frames.contests[self.frames.contests["study"] == "baselines"]
        if of_study.empty:
            return []
        found = over_one_network(contest_points(of_study))
        return records(found[found["jobs"] > 0])

    @cached_property
    def equalities(self) -> list[Row]:
        """Commands' contests of the study of validation that ended well, whose sides' first losses are compared."""
        table = self.frames.contests
        mine = (table["study"] == "validation") & (table["status"] == "ok") & (table["network"] != UNEQUAL)
        return records(table[mine])

    @cached_property
    def curves(self) -> list[Row]:
        """Parallel trainings of the study of validation, each with its largest difference from the serial one."""
        runs = self.frames.runs
        mine = runs[(runs["study"] == "validation") & (runs["kind"] == "train")]
        pairs, _ = compare(replace(self.frames, runs=mine)) if len(mine) else (mine, mine)
        return records(pairs)

    @cached_property
    def accuracies(self) -> list[Row]:
        """Trainings in a tensor mode, each with its accuracy beside that of data parallelism."""
        table = self.frames.evaluations
        return records(beside_data(with_last(self.frames.runs, table), table))


@dataclass(frozen=True, slots=True)
class Asked:
    """Target of a claim, asked of a machine.

    On the paper's machine the paper's own point counts: its series, model and devices. Any other machine answers by
    its own series of the same study, with networks of the same sort: the setting with most ranks, of several the one
    with most jobs, but first those of as many jobs as a verdict takes.
    """

    evidence: Evidence
    claim: Claim
    target: Target
    machine: str

    @property
    def home(self) -> bool:
        """Whether the machine is the paper's."""
        return self.machine == self.claim.machine

    @property
    def number(self) -> Number:
        return self.target.readings[0]

    @property
    def place(self) -> Place:
        return place_of(self.target)

    @property
    def network(self) -> str:
        """Name of a model, by which U-Nets are told from others."""
        return self.place.model or next((number.model for number in self.claim.numbers), "")

    def rows(self, kind: str, study: str) -> list[Row]:
        """List the jobs that may answer."""
        rows = [row for row in self.evidence.rows(self.machine, kind) if row["study"] == study]
        if self.home:
            paper = self.claim.paper
            return [row for row in rows if row["series"] == paper or row["series"].startswith(f"{paper}-")]
        return [row for row in rows if same_sort(self.network, row["model"])]

    def settings(self, kind: str, study: str, keys: Sequence[str] = KEY) -> list[list[Row]]:
        """List the jobs of each setting that may answer, the one that is asked first in front."""
        rows = self.rows(kind, study)
        if self.home:
            rows = [row for row in rows if self.place.has(row["model"], self.devices_of(row))]
        return in_order(grouped(rows, lambda row: tuple(str(row[key]) for key in keys)))

    def devices_of(self, row: Row) -> float:
        """Return the devices that a job's point stands for, which one that has only one rank of it doesn't use."""
        return math.prod(map(int, re.findall(r"\d+", row["grid"]))) if row["kind"] == "matmul" else float(row["ranks"])


Source = Callable[[Asked], Sample | None]
"""Reader of what a target is judged by; None where nothing was measured."""


def setting(row: Row) -> str:
    """Write what a job ran."""
    return f"{row['model']} on {row['grid']}, {plural(int(row['ranks']), 'device')}"


def records(table: pd.DataFrame) -> list[Row]:
    """List the rows of a frame."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    found = defaultdict[Hashable, list[Row]](list)
    for row in rows:
        found[key(row)].append(row)
    return list(found.values())


def in_order(groups: Iterable[list[Row]]) -> list[list[Row]]:
    """Sort settings as Asked says which one answers."""
    return sorted(groups, key=lambda rows: (len(rows) < FEWEST_JOBS, -rows[0]["ranks"], -len(rows)))
