"""Contests with other trainers that claims are judged by, of each trainer on the layout on which it stood best."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from statistics import median

from engine.published import Number, select
from engine.published.claims import Claim, Target, figures
from engine.result import metrics
from engine.result.gate import Interval
from engine.result.judges import peers
from engine.result.schema.peers import PeerContest
from reports.frames.contests import CONTEST, SERIES
from reports.frames.published_rows import ran_as
from reports.frames.reproduction.samples import (
    OURS,
    Asked,
    Place,
    Row,
    Sample,
    Source,
    divided,
    grouped,
    hull,
    inverse_of,
    lead_of,
    of_counts,
    of_ends,
    over_jobs,
    over_points,
    place_of,
    plain,
    same_sort,
    saved_of,
    sizes_of,
    span_of,
)
from reports.text import number as finite
from reports.text import plural

PEERS = {
    "Megatron-LM": "megatron-core",
    "DeepSpeed-3D": "deepspeed-3d",
    "DeepSpeed": "deepspeed-3d",
    "the state of the art": "deepspeed-3d",
    "ZeRO-3": "deepspeed-zero3",
    "llm-foundry": "fsdp2-reshard",
    "torchtitan": "fsdp2-reshard",
}
"""Names of other trainers in print, and those of the engine's peers: axonn-ipdps22's DeepSpeed has three dimensions,
and is the next best of its others (VII-B); llm-foundry is torch's FSDP, FULL_SHARD, torchtitan FSDP2.
"""
COMPILED = {"torchtitan": "torchtitan"}
"""Peers that redo a trainer's rows with torch.compile."""
COMPILER = "triton"
"""Module without which a peer compiles nothing."""
Join = Callable[[Sequence[Sample]], Sample]
"""Sample of one point or more."""
TIMES_SAVED = frozenset({"days_saved", "months_saved"})
"""Metrics of the time that a whole training takes less than a peer's."""
OF_STEPS = "time of a batch"
OF_PARTS = {"compute": "work_s", "communication that isn't hidden": "exposed_s", "": "exposed_s"}
"""Parts of a step by what published ratios are said to be of; one that says nothing is of par4d's communication."""


def _against(asked: Asked, peer: str) -> list[Row]:
    """Return the contests with a peer that answer, one of each point; on another machine one alone.

    Of a point's layouts that counts on which the peer stood best, but first those with as many jobs as a verdict takes.
    """
    name = _peer_of(asked, peer)
    theirs = [row for row in asked.evidence.contests if (row["system"], row["peer"]) == (asked.machine, name)]
    mine = [row for row in theirs if (_is_meant(asked, row) if asked.home else same_sort(asked.network, row["model"]))]
    points = grouped(mine, lambda row: tuple(str(row[key]) for key in (*SERIES, "ranks")))
    best = [max(rows, key=_standing) for rows in points]
    best.sort(key=lambda row: (not _tells(row), -row["ranks"], -row["jobs"]))
    return best if asked.home else best[:1]


def _tells(row: Row) -> bool:
    """Return whether a contest has as many jobs as a verdict takes."""
    return bool(row["jobs"] >= peers.FEWEST_JOBS)


def _standing(row: Row) -> tuple[bool, float]:
    """Return what one of several contests of a point is chosen by, the most of all."""
    return _tells(row), row["ratio"]


def _peer_of(asked: Asked, trainer: str) -> str | None:
    """Return the name of the peer that stands for a trainer; None of what no peer is like."""
    compiled = asked.target.comparison is None and asked.number.compiled
    return (COMPILED if compiled else PEERS).get(trainer)


def _is_meant(asked: Asked, row: Row) -> bool:
    """Return whether a contest is of the paper's point; one that tells a number ran as its row did, too."""
    if not _is_of_point(asked, row):
        return False
    if asked.target.comparison is not None:
        return True
    formats = _formats(asked.claim.paper)
    as_printed = ran_as(row, asked.number.model_copy(update={"batch_tokens": _batch(asked)}))
    return as_printed and (not formats or row["dtype"] in formats)


def _is_of_point(asked: Asked, row: Row) -> bool:
    """Return whether a contest has the paper's model and devices, of a range of models each on its own number of
    devices.
    """
    if not (asked.place.has(row["model"], row["ranks"]) and same_sort(asked.network, row["model"])):
        return False
    if asked.target.comparison is not None or "to" not in asked.number.model.split():
        return True
    own = _sizes(asked).get(int(row["ranks"]), row["model"])
    return not same_sort(own, row["model"]) or plain(own) == plain(row["model"])


def options_beside(asked: Asked) -> list[tuple[Row, tuple[str, ...]]]:
    """List the paper's own contests at a target's point, each with its batch and its number format, in words, where
    they are others than the number's; none of a contest that counts.
    """
    of_paper = [row for row in asked.evidence.contests if row["series"].startswith(f"{asked.claim.paper}-")]
    mine = [row for row in of_paper if row["system"] == asked.machine and _is_of_point(asked, row)]
    if asked.target.comparison is not None:
        return [(row, ()) for row in mine]
    trainers = {_peer_of(asked, name) for name in (asked.number.over, asked.number.framework)}
    found = [(row, _differing(asked, row)) for row in mine if row["peer"] in trainers]
    return [(row, differing) for row, differing in found if differing or _is_meant(asked, row)]


def _differing(asked: Asked, row: Row) -> tuple[str, ...]:
    formats = {asked.number.dtype} if asked.number.dtype else _formats(asked.claim.paper)
    other_batch = _batch(asked) not in (None, _tokens(row))
    found = [plural(int(finite(row["sequences"])), "sequence")] if other_batch else []
    return (*found, *([str(row["dtype"])] if formats and row["dtype"] not in formats else []))


def _batch(asked: Asked) -> int | None:
    """Return the tokens of a step of a number; None where the paper prints none."""
    number = asked.number
    return _batch_of_weak_scaling(asked) if number.metric in TIMES_SAVED else number.batch_tokens


def _tokens(row: Row) -> float:
    """Count the tokens of a contest's step."""
    return finite(row["sequences"]) * finite(row["sequence"])


def _sizes(asked: Asked) -> Mapping[int, str]:
    return sizes_of(asked.claim.paper, asked.claim.system)


def _batch_of_weak_scaling(asked: Asked) -> int | None:
    """Return the tokens of a step of the paper's weak scaling, in which it tells the time of a whole training."""
    every = select(paper=asked.claim.paper, system=asked.claim.system, study="weak_scaling")
    batches = {one.batch_tokens for one in every} - {None}
    return next(iter(batches)) if len(batches) == 1 else None


@cache
def _formats(paper: str) -> frozenset[str]:
    """Return the number formats that a paper trains in; none where it prints none."""
    return frozenset(number.dtype for number in select(paper=paper) if number.dtype)


def _versus(row: Row) -> Sample | None:
    """Return the paired ratio of the engine's time by the peer's."""
    return of_ends(row["ratio"], row["low"], row["high"], int(row["jobs"]), _setting(row))


@cache
def points_of(claim: Claim, number: Number) -> tuple[Place, ...]:
    """Return the points that a number is of: of a range those in it at which its figure compares trainers."""
    whole = place_of(Target(readings=(number,)))
    figure = (one for one in figures(claim.paper) if one.where == claim.where)
    mine = (each for one in figure for each in one.claims if each.system == claim.system)
    compared = dict.fromkeys(place_of(target) for each in mine for target in each.targets if target.comparison)
    within = [one for one in compared if one.model and one.devices and whole.has(one.model, one.devices[0])]
    return tuple(within) if isinstance(number.devices, str) and within else (whole,)


def _over_points(asked: Asked, figure: Callable[[Sample], Sample], join: Join) -> Sample | None:
    """Join a figure of the paired ratios with the number's peer at all of its points; on another machine of the one
    contest that answers.
    """
    rows = _against(asked, asked.number.over)
    places = points_of(asked.claim, asked.number) if asked.home else (Place(),)
    chosen = [_foremost(row for row in rows if place.has(row["model"], row["ranks"])) for place in places]
    ratios = [_versus(row) if row is not None else None for row in chosen]
    return over_points([figure(ratio) if ratio is not None else None for ratio in ratios], join)


def _foremost(rows: Iterable[Row]) -> Row | None:
    """Return the contest of a point that counts; None of none."""
    return max(rows, key=_standing, default=None)


def _setting(row: Row) -> str:
    return f"{row['model']}, {plural(int(row['ranks']), 'device')}, {row['peer']} on {row['layout'] or row['grid']}"


def saved(asked: Asked) -> Sample | None:
    return _over_points(asked, saved_of, hull)


def training_time_saved(asked: Asked) -> Sample | None:
    """Return the time that the paper's whole training takes less than the peer's at the rates of both sides; of a range
    of devices that of all of the paper's points in it.
    """
    few, many = span_of(asked.number) or (0, 0)
    budgets = [one.si for one in select(paper=asked.claim.paper, metric="tokens_billion")]
    tokens = asked.number.tokens or next(iter(budgets), None)
    if tokens is None or not asked.home:
        return None
    rows = _against(asked, asked.number.over)
    sizes = [size for size in _sizes(asked) if few <= size <= many] or list(dict.fromkeys(row["ranks"] for row in rows))
    chosen = [_foremost(row for row in rows if row["ranks"] == size) for size in sizes]
    return over_points([_less_time(asked, row, tokens) if row is not None else None for row in chosen])


def _less_time(asked: Asked, row: Row, tokens: float) -> Sample | None:
    """Return the time that so many tokens take less than the peer's, by the median steps of each job."""
    step_tokens = _tokens(row)

    def whole_s(steps: Sequence[float]) -> float:
        return metrics.time_to_solution(tokens, metrics.rate(step_tokens, median(steps)))

    timed = [(peers.steps(job.ours), peers.steps(job.peer)) for job in _jobs(asked, row)]
    timed = [(ours, peer) for ours, peer in timed if ours and peer and min(*ours, *peer) > 0]
    return of_counts([whole_s(peer) - whole_s(ours) for ours, peer in timed], _setting(row))


def speed_up(asked: Asked) -> Sample | None:
    """Return the greatest speed-up, as the paper prints "up to"."""
    return _over_points(asked, inverse_of, _greatest)


def _greatest(samples: Sequence[Sample]) -> Sample:
    return max(samples, key=lambda one: one.value)


def efficiency(asked: Asked) -> Sample | None:
    """Return by how much more the one ahead keeps of its rate from fewer devices to more, with the same training: the
    ratio of both sides' times on the fewer over that on the more.
    """
    comparison = asked.target.comparison
    if comparison is None or comparison.ahead not in OURS or not asked.home:
        return None
    few, many = map(int, re.findall(r"\d+", comparison.at))
    on: dict[tuple[str, str], dict[int, Row]] = {}
    for row in _against(asked, comparison.behind):
        on.setdefault((row["model"], str(row["sequences"])), {}).setdefault(int(row["ranks"]), row)
    for rows in on.values():
        ends = [found for size in (few, many) if size in rows and (found := _versus(rows[size]))]
        if len(ends) == 2:
            return lead_of(divided(ends[0], ends[1], f"{ends[1].of}, over {plural(few, 'device')}"))
    return None


def faster(asked: Asked) -> Sample | None:
    comparison = asked.target.comparison
    if comparison is None or (comparison.ahead in OURS) == (comparison.behind in OURS):
        return None
    ours = comparison.ahead in OURS
    ratio = next(map(_versus, _against(asked, comparison.behind if ours else comparison.ahead)), None)
    return lead_of(inverse_of(ratio) if ours else ratio) if ratio else None


def _jobs(asked: Asked, row: Row) -> list[PeerContest]:
    """Return the jobs of a contest; of a compiled number those whose peer could compile."""
    table = asked.evidence.frames.contests
    for key in CONTEST:
        table = table[table[key] == row[key]]
    every = [job for jobs in table["contests"] for job in jobs]
    compiled = asked.target.comparison is None and asked.number.compiled
    return [job for job in every if not (compiled and COMPILER in job.peer.without)]


def part(figure: str) -> Source:
    """Return the source of the seconds of a part of the step of the trainer that a number is of."""

    def read(asked: Asked) -> Sample | None:
        ours = asked.number.framework in OURS
        for peer in PEERS if ours else (asked.number.framework,):
            for row in _against(asked, peer) if asked.home else ():
                parts = [job.ours.parts if ours else job.peer.parts for job in _jobs(asked, row)]
                of = f"{row['model']}, {plural(int(row['ranks']), 'device')}, {'the engine' if ours else row['peer']}"
                found = over_jobs([getattr(one, figure) for one in parts if one], of)
                if found is not None:
                    return found
        return None

    return read


def part_ratio(asked: Asked) -> Sample | None:
    """Return a peer's part of a step by the engine's, or the engine's step by a peer's, whichever a ratio is of."""
    what, against = asked.number.what, _against(asked, asked.number.over)
    if what == OF_STEPS:
        return next(map(_versus, against), None)
    if what not in OF_PARTS:
        return None
    for row in against:
        pairs = [(job.peer.parts, job.ours.parts) for job in _jobs(asked, row)]
        known = [
            (getattr(one, OF_PARTS[what]), getattr(other, OF_PARTS[what])) for one, other in pairs if one and other
        ]
        found = over_jobs([one / other for one, other in known if other > 0], _setting(row))
        if found is not None:
            return found
    return None


def hfu(asked: Asked) -> Sample | None:
    """Return a peer's share of the peak, which falls as its median step grows from job to job."""
    row = _of_framework(asked)
    if row is None:
        return None
    shares = [row["peer_hfu"] * row["peer_s"] / step_s for step_s in _steps(asked, row)]
    return over_jobs(shares, f"{row['peer']} on {row['layout'] or row['grid']}")


def tokens_per_s(asked: Asked) -> Sample | None:
    """Return a peer's tokens per second, of the median step of each job. Of a row that computes again selectively they
    are a lower end, as every contest computes everything again, or nothing.
    """
    row = _of_framework(asked)
    if row is None:
        return None
    of = f"{row['peer']} on {row['layout'] or row['grid']}"
    found = over_jobs([_tokens(row) / step_s for step_s in _steps(asked, row)], of)
    return _at_least(found) if found and _is_selective(asked.number) else found


def _is_selective(number: Number) -> bool:
    return number.recomputed == "selective"


def _at_least(found: Sample) -> Sample:
    return found._replace(interval=Interval(found.interval.low, inf), of=f"{found.of}, at least: all is computed again")


def _of_framework(asked: Asked) -> Row | None:
    """Return the contest with the trainer that a number is of, on the paper's machine alone."""
    return next(iter(_against(asked, asked.number.framework)), None) if asked.home else None


def _steps(asked: Asked, row: Row) -> list[float]:
    """Return the median step of a contest's peer in each job."""
    timed = [peers.steps(job.peer) for job in _jobs(asked, row)]
    return [median(steps) for steps in timed if steps and min(steps) > 0]
