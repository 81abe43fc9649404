"""Points of weak and strong scaling that claims are judged by: of the paper's series, on their fastest layouts."""

from collections.abc import Sequence
from statistics import median

from engine.published import Number
from engine.result import metrics
from engine.result.gate import Interval
from engine.result.judges.peers import FEWEST_JOBS
from reports.frames.reproduction.options import of_paper
from reports.frames.reproduction.samples import (
    LAYOUT,
    OURS,
    Asked,
    Row,
    Sample,
    Source,
    divided,
    grouped,
    lead_of,
    over_jobs,
    over_points,
    plain,
    setting,
    sizes_of,
    span_of,
)


def _jobs(asked: Asked, study: str, devices: int | None, model: str) -> list[Row]:
    """Return the jobs of a point on its fastest layout, by their median, but first of those with as many jobs as a
    verdict takes; without a number of devices of the most.
    """
    if not asked.home:
        return []
    rows = [row for row in asked.rows("train", study) if plain(model) in ("", plain(row["model"]))]
    devices = max((row["ranks"] for row in rows), default=0) if devices is None else devices
    rows = of_paper(asked, [row for row in rows if row["ranks"] == devices])
    layouts = grouped(rows, lambda row: tuple(str(row[key]) for key in LAYOUT))
    return min(layouts, key=_standing, default=[])


def _standing(jobs: Sequence[Row]) -> tuple[bool, float]:
    """Return what a layout is chosen by, the least of all."""
    return len(jobs) < FEWEST_JOBS, median(job["time_s"] for job in jobs)


def _at(asked: Asked, study: str, figure: str, devices: int | None, model: str) -> Sample | None:
    jobs = _jobs(asked, study, devices, model)
    return over_jobs([job[figure] for job in jobs], setting(jobs[0])) if jobs else None


def point(study: str, figure: str) -> Source:
    """Return the source of a figure of a point; of a range of devices that of all of the paper's points in it."""

    def read(asked: Asked) -> Sample | None:
        number = asked.number
        if not isinstance(number.devices, str):
            return _at(asked, study, figure, number.devices, number.model)
        return over_points([_at(asked, study, figure, *one) for one in points_between(asked, number)])

    return read


def points_between(asked: Asked, number: Number) -> list[tuple[int, str]]:
    low, high = span_of(number) or (0, 0)
    every = sizes_of(asked.claim.paper, asked.claim.system)
    return sorted((devices, model) for devices, model in every.items() if low <= devices <= high)


def lead_over_printed(asked: Asked) -> Sample | None:
    """Return the lead of the largest job's rate over the one that the paper prints of another, whom its note names."""
    comparison = asked.target.comparison
    ours = [one for one in asked.claim.numbers if one.framework in OURS]
    theirs = [one for one in asked.claim.numbers if comparison and one.note.startswith(comparison.behind)]
    if not ours or not theirs:
        return None
    largest = max(ours, key=lambda one: one.si)
    devices = largest.devices if isinstance(largest.devices, int) else None
    found = _at(asked, "weak_scaling", "hardware_flops_per_s", devices, largest.model)
    if found is None:
        return None
    low, high = (end / theirs[0].si for end in found.interval)
    return lead_of(found._replace(value=found.value / theirs[0].si, interval=Interval(low, high)))


def growth(asked: Asked) -> Sample | None:
    """Return the largest job's sustained flop/s over the smallest's of a range."""
    ends = [_at(asked, "weak_scaling", "hardware_flops_per_s", *one) for one in points_between(asked, asked.number)]
    if len(ends) < 2 or ends[0] is None or ends[-1] is None:
        return None
    return divided(ends[-1], ends[0], f"{ends[-1].of}, over {ends[0].of}")


def efficiency(asked: Asked) -> Sample | None:
    """Return a device's rate over that in the smallest job of the paper's series."""
    sizes = sizes_of(asked.claim.paper, asked.claim.system)
    devices = asked.number.devices
    if not sizes or not isinstance(devices, int):
        return None
    ends = [_per_device(asked, each, model) for each, model in ((devices, asked.number.model), min(sizes.items()))]
    return divided(ends[0], ends[1], f"{ends[0].of}, over {ends[1].of}") if ends[0] and ends[1] else None


def speed_up(asked: Asked) -> Sample | None:
    """Return how many times as fast the same training is on the most devices of the number's range as on the fewest."""
    few, many = span_of(asked.number) or (0, 0)
    ends = [_at(asked, "strong_scaling", "hardware_flops_per_s", each, asked.number.model) for each in (many, few)]
    return divided(ends[0], ends[1], f"{ends[0].of}, over {ends[1].of}") if ends[0] and ends[1] else None


def strong_efficiency(asked: Asked) -> Sample | None:
    """Return that speed-up over as many times as many devices."""
    found, (few, many) = speed_up(asked), span_of(asked.number) or (1, 1)
    if found is None:
        return None
    more = many / few
    return found._replace(value=found.value / more, interval=Interval(*(end / more for end in found.interval)))


def _per_device(asked: Asked, devices: int, model: str) -> Sample | None:
    jobs = _jobs(asked, "weak_scaling", devices, model)
    rates = [metrics.per_device(job["hardware_flops_per_s"], devices) for job in jobs]
    return over_jobs(rates, setting(jobs[0])) if jobs else None


def compute(asked: Asked) -> Sample | None:
    """Return the compute of a batch, with tuned products or without, whichever the number is of."""
    jobs = _jobs(asked, "weak_scaling", None, asked.number.model)
    return over_jobs([job["compute_s"] for job in jobs], setting(jobs[0])) if jobs else None


def solution(asked: Asked) -> Sample | None:
    """Return the time that the number's tokens would take."""
    devices = asked.number.devices
    jobs = _jobs(asked, "strong_scaling", devices if isinstance(devices, int) else None, asked.number.model)
    tokens = asked.number.tokens
    if not jobs or tokens is None:
        return None
    return over_jobs([metrics.time_to_solution(tokens, job["tokens_per_s"]) for job in jobs], setting(jobs[0]))
