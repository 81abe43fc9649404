"""Culprits: the part of a test that got worse (compute, communication, products, a link, a node), and what changed.

The parts of the night's results (NightJob.parts) are compared with those of the nights before. One slow node is looked
for first, because the others then wait for it, which looks like slow communication.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from reports.read.history import NODES, NightJob
from reports.text import gain, signed
from systems.references import CANARY

NODE_APART = 0.1
"""Fraction by which the slow node computes longer than the others, beyond what is usual."""
COUNTS = 0.03
"""Fraction of a step from which a part that grew counts, and fraction of itself from which a rate that fell does."""
OF_ONE_THING = {
    "Peak": "compute: matrix products alone got slower",
    "MemoryBandwidth": "memory: copying alone got slower",
    "LaunchLatency": "the processor: launching an operator alone got slower",
    "Bandwidth": "the link: collectives alone got slower",
    CANARY: "the machine, as the canary never changes",
}
"""Culprits of tests that measure one thing only, and of the canary."""


def culprit(test: str, tonight: Sequence[NightJob], before: Sequence[NightJob]) -> str:
    """Name the part of a test that got slower, or of a machine if the canary did; "" where nothing shows it.

    before: jobs from before it got slower.
    """
    if known := _slow_node(tonight, before) or OF_ONE_THING.get(test):
        return known
    now, then = _usual_parts(tonight), _usual_parts(before)
    timed = [part for part in now.keys() & then.keys() if part[0] in ("compute", "exposed")]
    kind, axis = worst = max(timed, key=lambda part: now[part] - then[part], default=("", ""))
    whole = sum(then[part] for part in timed)
    if not whole or now[worst] - then[worst] < COUNTS * whole:
        return ""
    more = f"{signed((now[worst] - then[worst]) / whole)} of a step"
    if kind == "compute":
        peak = _fell(", as do matrix products alone, whose rate fell by", ("peak", ""), now, then)
        return f"compute: {more}{peak}{_fell(', at a clock that fell by', ('clock', ''), now, then)}"
    link = _fell(", and what the link carries along it fell by", ("rate", axis), now, then)
    return f"the link: exposed communication along axis {axis}, {more}{link}"


Parts = Mapping[tuple[str, str], float]


def _usual_parts(jobs: Sequence[NightJob]) -> Parts:
    parts = {part for job in jobs for part in job.parts}
    return {part: median(job.parts[part] for job in jobs if part in job.parts) for part in parts}


def _host_times(parts: Parts) -> dict[str, float]:
    return {host: value for (kind, host), value in parts.items() if kind == "host" and value > 0}


def _slow_node(tonight: Sequence[NightJob], before: Sequence[NightJob]) -> str:
    """Name the one node that is the slowest in most of tonight's jobs, by more than is usual; "" for none.

    Where all are known from before, each is compared with itself, as nodes may have unlike work.
    """
    own = _host_times(_usual_parts(before))
    unlike = own if {host for job in tonight for kind, host in job.parts if kind == "host"} <= own.keys() else {}
    slow, usual = (list(filter(None, (_slowest(job, unlike) for job in jobs))) for jobs in (tonight, before))
    if not slow or not usual:
        return ""
    host, times = Counter(host for _, host in slow).most_common(1)[0]
    more, then = median(more for more, name in slow if name == host), median(more for more, _ in usual)
    if 2 * times <= len(slow) or (1 + more) / (1 + then) - 1 < NODE_APART:
        return ""
    usually = f"{'by what each takes else, ' if unlike else ''}the slowest node of a job usually {signed(then)}"
    return f"one node: {host} computes {signed(more)} longer than the others, {usually}"


def _slowest(job: NightJob, unlike: Mapping[str, float]) -> tuple[float, str] | None:
    """Return the fraction by which the slowest node of a job computes longer than the others' median, and its name.

    unlike: divisors of the nodes' times.
    """
    hosts = sorted((value / unlike.get(host, 1.0), host) for host, value in _host_times(job.parts).items())
    if len(hosts) < 2:
        return None
    return hosts[-1][0] / median(value for value, _ in hosts[:-1]) - 1, hosts[-1][1]


def _fell(words: str, part: tuple[str, str], now: Parts, then: Parts) -> str:
    """Write by how much a rate fell; "" where it did not or isn't known."""
    fell = 1 - now[part] / then[part] if part in now and then.get(part) else 0.0
    return f"{words} {gain(fell)}" if fell > COUNTS else ""


def what_changed(before: Sequence[Mapping[str, str]], since: Sequence[Mapping[str, str]]) -> list[str]:
    """Describe how the state of jobs differs from that of jobs before: torch 2.9 -> 2.10.

    A value that jobs before had too is no change. Of nodes, which a queue draws anew every night, only those count
    that all jobs since then have had.
    """
    nodes = [{*state.get(NODES, "").split(", ")} for state in since]
    known = {node for state in before for node in state.get(NODES, "").split(", ")} | {""}
    words = []
    if before and since and (ours := sorted(set.intersection(*nodes) - known)):
        words.append(f"{NODES}: {', '.join(ours)} {'was' if len(ours) == 1 else 'were'} not among them before")
    for name in dict.fromkeys(name for state in [*before, *since] for name in state if name != NODES):
        old, new = ({state.get(name, "") for state in states} for states in (before, since))
        if old and new and not old & new:
            words.append(f"{name} {' or '.join(sorted(old)) or 'unset'} -> {' or '.join(sorted(new)) or 'unset'}")
    return words
