"""A clause says what of a test got worse: compute, communication along an axis, matrix products, a link, or one node.

The parts of the night's results (NightJob.parts) are compared with those of the nights before. One slow node is looked
for first, because the others then wait for it, which looks like slow communication.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from reports.nights.history import NightJob
from reports.text import gain, signed

NODE_APART = 0.1
"""A node is the slow one if its compute grew by this fraction more than that of the others."""
COUNTS = 0.03
"""A part that grew counts from this part of the step on, and a rate that fell from this part of what it was on."""

Parts = Mapping[tuple[str, str], float]


def usual_parts(jobs: Iterable[NightJob]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job in jobs:
        for part, value in job.parts.items():
            found[part].append(value)
    return {part: median(values) for part, values in found.items()}


def culprit(test: str, tonight: Sequence[NightJob], before: Sequence[NightJob]) -> str:
    """Say what of a test got slower; "" where nothing shows it. The jobs before are those from before it did."""
    now, then = usual_parts(tonight), usual_parts(before)
    if node := _slow_node(tonight, before, now, then):
        return node
    if test in OF_ONE_THING:
        return OF_ONE_THING[test]
    growth = {
        part: now[part] - then[part]
        for part in now
        if part in then and part[0] in ("compute", "exposed") and now[part] > then[part]
    }
    whole = then.get(("compute", ""), 0.0) + sum(value for part, value in then.items() if part[0] == "exposed")
    if not growth or not whole or max(growth.values()) < COUNTS * whole:
        return ""
    kind, axis = max(growth, key=lambda part: growth[part])
    more = signed(growth[kind, axis] / whole)
    if kind == "compute":
        return f"compute: it takes {more} of a step longer{_peak(now, then)}{_clock(now, then, _hosts(now))}"
    rate = _fell(now.get(("rate", axis)), then.get(("rate", axis)))
    link = f", and what the link carries along it fell by {rate}" if rate else ""
    return f"the link: exposed communication along axis {axis} takes {more} of a step longer{link}"


OF_ONE_THING = {
    "Peak": "compute: matrix products alone got slower",
    "MemoryBandwidth": "memory: copying alone got slower",
    "LaunchLatency": "the processor: launching an operator alone got slower",
    "Bandwidth": "the link: collectives alone got slower",
}
"""These tests measure one thing only, which is the culprit."""


def _slow_node(tonight: Sequence[NightJob], before: Sequence[NightJob], now: Parts, then: Parts) -> str:
    """Name the node whose compute got slower than the others', "" for none. It is compared with itself, or, where a
    night's nodes are others than before, with how far nodes of one job usually are apart.
    """
    by_host = {
        host: now[kind, host] / then[kind, host] - 1
        for kind, host in now
        if kind == "host" and then.get((kind, host), 0.0) > 0
    }
    if len(by_host) < 2 or any(kind == "host" and host not in by_host for kind, host in now):
        return _apart(tonight, before)
    worst = max(by_host, key=lambda host: by_host[host])
    others = median(more for host, more in by_host.items() if host != worst)
    if by_host[worst] - others < NODE_APART or by_host[worst] < 2 * others:
        return ""
    clock = _clock(now, then, [worst])
    return f"one node: {worst} computes {signed(by_host[worst])} longer than before, the others {signed(others)}{clock}"


def _apart(tonight: Sequence[NightJob], before: Sequence[NightJob]) -> str:
    """Name the one node that is the slowest in most of tonight's jobs, by more than is usual; "" for none."""
    slow = [one for one in map(_slowest, tonight) if one]
    usual = [more for more, _ in filter(None, map(_slowest, before))]
    if not slow or not usual:
        return ""
    host, times = Counter(host for _, host in slow).most_common(1)[0]
    more, then = median(more for more, of in slow if of == host), median(usual)
    if 2 * times <= len(slow) or (1 + more) / (1 + then) - 1 < NODE_APART:
        return ""
    usually = f"the slowest node of a job usually {signed(then)}"
    return f"one node: {host} computes {signed(more)} longer than the others, {usually}"


def _slowest(job: NightJob) -> tuple[float, str] | None:
    """Return by which fraction the slowest node of a job computes longer than the others' median, and its name."""
    hosts = sorted((value, host) for (kind, host), value in job.parts.items() if kind == "host" and value > 0)
    if len(hosts) < 2:
        return None
    return hosts[-1][0] / median(value for value, _ in hosts[:-1]) - 1, hosts[-1][1]


def _hosts(now: Parts) -> list[str]:
    return [host for kind, host in now if kind == "clock"]


def _clock(now: Parts, then: Parts, hosts: Iterable[str]) -> str:
    both = [
        (now["clock", host], then["clock", host]) for host in hosts if {("clock", host)} <= now.keys() & then.keys()
    ]
    fell = _fell(median(one for one, _ in both), median(other for _, other in both)) if both else ""
    return f", at a clock that fell by {fell}" if fell else ""


def _peak(now: Parts, then: Parts) -> str:
    fell = _fell(now.get(("peak", "")), then.get(("peak", "")))
    return f", as do matrix products alone, whose rate fell by {fell}" if fell else ""


def _fell(now: float | None, then: float | None) -> str:
    return gain(1 - now / then) if now and then and now < (1 - COUNTS) * then else ""
