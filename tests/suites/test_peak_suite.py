"""`reframe -c suites/peak.py -c suites/p2p.py` here: memory, launches and messages, beside one short sweep."""

import pytest
from running import Run, figures, reframe

from engine.result.schema import Result, parse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One rank alone, with the shortest time budget that measures anything."""
    ends = ["-n", "(MemoryBandwidth|LaunchLatency)%ranks=1$|Peak%ranks=1%dtype=fp64$|Transfers"]
    short = ["-S", "time_budget_s=1", "-S", "array_bytes=8000000", "-S", "Transfers.sizes=1KiB"]
    files = ["-c", "suites/peak.py", "-c", "suites/p2p.py"]
    return reframe(tmp_path_factory.mktemp("peak"), *files, "--system", "local", *ends, *short, "-r")


def records(run: Run) -> dict[str, tuple[Result, dict[str, float]]]:
    """By kind: the result, and what ReFrame took from it."""
    cases = [(parse(case["record"], "record"), figures(case)) for case in run.cases()]
    return {result.kind: (result, taken) for result, taken in cases}


def test_all_end_well(run: Run) -> None:
    assert run.code == 0, run.out
    assert sorted(records(run)) == ["gemm", "latency", "memory", "p2p"]
    for result, _ in records(run).values():
        assert result.status == "ok"
        assert result.labels == {"study": "peak", "system": "local", "partition": "cpu"}


def test_the_figures_are_those_of_the_results(run: Run) -> None:
    found = records(run)
    memory, rates = found["memory"]
    assert memory.stream
    assert rates == pytest.approx({kernel.name: kernel.best_bytes_per_s for kernel in memory.stream.kernels})
    latency, times = found["latency"]
    assert times == pytest.approx({"dispatch": latency.launches[0].median_s})
    gemm, best = found["gemm"]
    assert gemm.dtype == "fp64"
    assert best == pytest.approx({"best_flops_per_s": gemm.best_flops_per_s})
    transfers, times = found["p2p"]
    assert times == pytest.approx(
        {f"{one.operation}_{one.backend}_1_nodes_1024": one.average_s for one in transfers.transfers}
    )
    assert times
