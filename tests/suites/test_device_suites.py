"""Suites of devices and links: what they measure, keep and store."""

from pathlib import Path
from typing import get_args

import pytest
import yaml
from reframe.core.exceptions import SanityError
from running import Run, figures, option, project, reframe, succeed, tells_a_hang_in_time

from engine.comm.collective import Kind
from engine.result.schema import Result, parse
from engine.result.schema.bench import CollectiveTime, CountedStep, FittedLink, Rings
from engine.simulator.collectives import Taken, moved_bytes
from engine.simulator.link import RingTime
from suites.base.counted_flops import check_formula
from suites.base.kept import links_of, superseded
from systems import Between, Measured, Performance, Source
from systems.store import Name


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One rank alone, with the shortest time budget that measures anything."""
    ends = ["-n", "(MemoryBandwidth|LaunchLatency)%ranks=1$|Peak%ranks=1%dtype=fp64$|Transfers|CountedFlops"]
    short = ["-S", "time_budget_s=1", "-S", "array_bytes=8000000", "-S", "Transfers.sizes=1KiB"]
    files = ["-c", "suites/peak.py", "-c", "suites/p2p.py"]
    return reframe(tmp_path_factory.mktemp("peak"), *files, "--system", "local", *ends, *short, "-r")


def records(swept: Run) -> dict[str, tuple[Result, dict[str, float]]]:
    """By kind: the result, and what ReFrame took from it."""
    cases = [(parse(case["record"], "record"), figures(case)) for case in swept.cases()]
    return {result.kind: (result, taken) for result, taken in cases}


def test_all_end_well(swept: Run) -> None:
    assert swept.code == 0, swept.out
    assert sorted(records(swept)) == ["flops", "gemm", "latency", "memory", "p2p"]
    for result, _ in records(swept).values():
        assert result.status == "ok"
        assert result.labels == {"study": "peak", "system": "local", "partition": "cpu"}


def test_a_formula_that_is_off_by_1_percent_fails() -> None:
    good = CountedStep(recomputed="nothing", counted=1000, formula=1000)
    check_formula([good])
    for off in (990, 1001, 1010):
        with pytest.raises(SanityError, match=f"1,000 flops, but {off:,}"):
            check_formula([good, CountedStep(recomputed="blocks", counted=1000, formula=off)])


def test_the_figures_are_those_of_the_results(swept: Run) -> None:
    found = records(swept)
    memory, rates = found["memory"]
    assert memory.stream
    assert rates == pytest.approx({kernel.name: kernel.best_bytes_per_s for kernel in memory.stream.kernels})
    latency, times = found["latency"]
    assert times == pytest.approx({"dispatch": latency.launches[0].median_s})
    gemm, best = found["gemm"]
    assert gemm.dtype == "fp64"
    assert best == pytest.approx({"best_flops_per_s": gemm.best_flops_per_s})
    _, ratios = found["flops"]
    assert ratios == {"formula_over_counted_nothing": 1.0, "formula_over_counted_blocks": 1.0}
    transfers, times = found["p2p"]
    assert times == pytest.approx(
        {f"{one.operation}_{one.backend}_1_nodes_1024": one.average_s for one in transfers.transfers}
    )
    assert times


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, whose store may be written to."""
    return project(tmp_path_factory.mktemp("bandwidth"))


@pytest.fixture(scope="module")
def run(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    short = ["-S", "message_bytes=65536", "-S", "time_budget_s=1e-3"]
    folder = tmp_path_factory.mktemp("run")
    return reframe(folder, "-c", "suites/bandwidth.py", "--system", "local", *short, "-r", root=root)


def test_a_run_that_is_good_fills_the_store_and_says_so(run: Run, root: Path) -> None:
    assert run.code == 0, run.out
    file = root / "systems" / "measured" / "local.yaml"
    assert str(file) in run.out
    (case,) = run.cases()
    result = parse(case["record"], "record")
    assert result.links is not None
    rates = {f"{rings.apart}x{rings.ranks}": rings.bytes_per_s for rings in result.links.within}
    assert figures(case) == pytest.approx({f"within_{pair}": rate for pair, rate in rates.items()})
    kept = yaml.safe_load(file.read_text())
    assert kept["intra"] == pytest.approx(rates, rel=1e-4)
    for rings in result.links.within:
        kinds = kept["intra_kinds"][f"{rings.apart}x{rings.ranks}"]
        largest = {time.kind: time.bytes_per_s for time in rings.times if time.input_bytes >= 65536 // rings.ranks}
        assert kinds == pytest.approx(largest, rel=1e-4)
    assert set(kept["intra_processor"]) == {"all_gather", "reduce_scatter", "all_reduce"}
    assert all(taken["byte_s"] > 0 for taken in kept["intra_processor"].values())
    assert kept["intra_step_s"] >= 0
    assert kept["message_bytes"] == 65536
    assert kept["source"]["device"] == result.provenance.devices[0]
    assert kept["source"]["ranks"] == result.ranks
    command = kept["source"]["command"]
    assert command.startswith("bench collectives ")
    assert (option(command, "--device"), float(option(command, "--bytes"))) == ("cpu", 65536)
    assert "inter" not in kept


def test_what_messages_between_nodes_take_is_that_of_few_ranks_in_small_and_of_all_in_large_ones(run: Run) -> None:
    """Either alone is of one size, which tells no step."""
    result = parse(run.cases()[0]["record"], "record")
    assert result.links is not None
    made = Taken(3e-4, 2e-9)

    def rings(ranks: int, num_bytes: int) -> Rings:
        of = [RingTime(Kind(kind), num_bytes, ranks, made.of(Kind(kind), num_bytes, ranks)) for kind in get_args(Name)]
        times = tuple(
            CollectiveTime(
                **{"kind": one.kind.value, "input_bytes": num_bytes, "samples": 3, "calls": 1},
                **{"moved_bytes": moved_bytes(one.kind, num_bytes, ranks), "processor_s": one.time_s},
                **dict.fromkeys(("median_s", "low_s", "high_s", "bytes_per_s"), 1.0),
            )
            for one in of
        )
        return Rings(apart=1, ranks=ranks, groups=1, nodes=2, times=times, bytes_per_s=1.0)

    fitted = FittedLink(bytes_per_s=1.0, step_s=0.0, half_bytes=0.0)
    several = {"nodes": 2, "alone": (rings(2, 4096),), "shared": (rings(4, 1 << 20),), "fitted": fitted}
    inter = links_of(result.model_copy(update={"links": result.links.model_copy(update=several)})).inter
    assert inter is not None
    for taken in inter.processor.values():
        assert (taken.step_s, taken.byte_s) == pytest.approx((made.step_s, made.byte_s), rel=1e-3)


def test_what_says_more_is_not_replaced() -> None:
    source = Source(command="bench collectives", device="a device", hosts=4, ranks=8)
    between = Between(bytes_per_s=1e9, link_bytes_per_s=1e9, step_s=0, half_bytes=0)
    links = Measured(date="2026-01-02", source=source, message_bytes=1, devices_per_node=2, inter=between)
    fitted = Performance(products=0.5, link=0.5, fading=0, slowdown=0, spread=0.1, fitted_to=("a row",))
    whole = links.model_copy(update={"performance": fitted})
    another = links.model_copy(update={"source": source.model_copy(update={"device": "another"})})
    assert superseded(links, links) is None
    assert superseded(whole, another) is None
    assert "calibration" in str(superseded(whole, links))
    assert "one node" in str(superseded(links, links.model_copy(update={"inter": None})))


def test_a_dry_run_takes_all_devices_of_four_nodes_and_keeps_nothing(root: Path, tmp_path: Path) -> None:
    done = succeed(tmp_path, "-c", "suites/bandwidth.py", "--system", "frontier", root=root)
    (script,) = done.jobs("bench collectives")
    assert (option(script, "--nodes"), option(script, "--ntasks"), option(script, "--device")) == ("4", "32", "cuda")
    assert tells_a_hang_in_time(script)
    assert not (root / "systems" / "measured" / "frontier.yaml").exists()
