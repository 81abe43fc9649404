"""Claims about links: broadcasts between adjacent ranks and others, on machines with links of the same sort."""

from itertools import combinations
from pathlib import Path

import pytest
from sample_results import provenance
from test_report_reproduction import claim, evidence, verdicts

from engine.result.schema import Result
from engine.result.schema.bench import Broadcast, Links


def mapped(
    system: str,
    adjacent: float,
    others: float,
    *,
    every: float = 0.0,
    ranks: int = 4,
    job: int = 0,
    num_bytes: int = 125_000_000,
) -> Result:
    """A broadcast between each two ranks at these bytes/s, where 0 and 1, 2 and 3 ... are adjacent; and of all."""

    def sent(group: tuple[int, ...], rate: float) -> Broadcast:
        time_s = num_bytes / rate
        return Broadcast(
            ranks=group, bytes_per_s=rate, samples=7, calls=1, median_s=time_s, low_s=time_s, high_s=time_s
        )

    pairs = [sent(pair, adjacent if pair[0] // 2 == pair[1] // 2 else others) for pair in combinations(range(ranks), 2)]
    links = Links(
        nodes=1,
        devices_per_node=ranks,
        message_bytes=num_bytes,
        broadcasts=(*pairs, sent(tuple(range(ranks)), every or others)),
    )
    return Result(
        kind="collectives",
        status="ok",
        labels={"study": "bandwidth", "system": system, "partition": "gpu"},
        config={"device": "cuda", "threads": 1, "pairs": True},
        ranks=ranks,
        dtype="fp32",
        links=links,
        provenance=provenance(job),
    )


def maps(
    system: str, adjacent: float, others: float, *, jobs: int = 3, first: int = 0, every: float = 0.0
) -> list[Result]:
    return [
        mapped(system, adjacent * (1 + job / 1000), others * (1 + job / 1000), every=every, job=first + job)
        for job in range(jobs)
    ]


@pytest.mark.parametrize(
    ("by", "expected"), [(1.0, "reproduces"), (1.2, "better"), (0.8, "differs")], ids=["as printed", "faster", "slower"]
)
def test_rates_of_pairs_are_judged_on_the_papers_machine(by: float, expected: str, tmp_path: Path) -> None:
    frames = evidence(tmp_path, maps("system-ii", by * 184e9, by * 15e9))
    assert verdicts(claim("colossal-ai", "Fig. 10", "System II"), frames) == [("system-ii", expected, False)] * 2


@pytest.mark.parametrize(
    ("adjacent", "jobs", "expected"),
    [(120e6, 3, "reproduces"), (9e6, 3, "differs"), (120e6, 1, "can't tell")],
    ids=["faster", "slower", "one job"],
)
def test_elsewhere_pairs_that_the_machines_file_knows_count(
    adjacent: float, jobs: int, expected: str, tmp_path: Path
) -> None:
    results = maps("vcluster-pairs", adjacent, 10e6, jobs=jobs) + maps("vcluster", 1e6, 120e6, first=5)
    found = verdicts(claim("colossal-ai", "Fig. 10", "adjacent GPUs"), evidence(tmp_path, results))
    assert [(machine, verdict) for machine, verdict, _ in found] == [("vcluster-pairs", expected)]


@pytest.mark.parametrize(("rate", "expected"), [(100e6, "reproduces"), (5e6, "differs")])
def test_two_machines_are_compared_by_what_is_not_adjacent(rate: float, expected: str, tmp_path: Path) -> None:
    results = maps("vcluster", rate, rate) + maps("vcluster-pairs", 120e6, 10e6, first=5)
    others = claim("colossal-ai", "Fig. 10", "System I is faster for other GPUs")
    assert verdicts(others, evidence(tmp_path / "both", results)) == [("vcluster", expected, True)]
    assert verdicts(others, evidence(tmp_path / "one", results[:3])) == []


def test_the_papers_machines_are_compared_by_pairs_and_by_all(tmp_path: Path) -> None:
    results = maps("system-i", 200e9, 200e9, every=9e9) + maps("system-ii", 184e9, 15e9, first=5)
    others = claim("colossal-ai", "Fig. 10", "System I is faster for other GPUs")
    found = verdicts(others, evidence(tmp_path, results))
    assert found == [("system-i", "reproduces", False), ("system-i", "differs", False)]


def test_another_message_than_the_papers_tells_nothing_of_its_machines(tmp_path: Path) -> None:
    small = [mapped("system-ii", 184e9, 15e9, job=job, num_bytes=1_000_000) for job in range(3)]
    assert verdicts(claim("colossal-ai", "Fig. 10", "System II"), evidence(tmp_path, small)) == []


def test_two_machines_are_compared_by_one_message_alone(tmp_path: Path) -> None:
    one = [mapped("vcluster", 1e8, 1e8, job=job, num_bytes=1_000_000) for job in range(3)]
    other = [mapped("vcluster-pairs", 1.2e8, 1e7, job=5 + job, num_bytes=4_000_000) for job in range(3)]
    claimed = claim("colossal-ai", "Fig. 10", "System I is faster for other GPUs")
    assert verdicts(claimed, evidence(tmp_path, one + other)) == []
