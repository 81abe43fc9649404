"""Benchmarks of links: rings by collective, messages and sums by back end, who takes part, and one valid result."""

import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_command import finish, start
from mpi_ranks import environment, mpirun
from real_ranks import run_processes
from waiting import LONG_S

from engine.bench.collectives import Collectives, list_groups, sizes
from engine.bench.frame import Benchmark, run
from engine.bench.groups import nodes_of, outer_groups, pairs
from engine.bench.p2p import P2P, parse_backends, parse_lengths
from engine.bench.world import Sampler, World
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, from_environment
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.result import schema
from engine.result.schema.bench import Links, Rings, Transfer
from engine.timeouts import Timeouts

CPU = torch.device("cpu")
ALONE, TWO = from_environment({}), Launch(0, 2, 0, "torchrun", "127.0.0.1", 20000)


def rings(message_bytes: float | None = None, repeats: int = 7, budget_s: float = 1.0) -> Collectives:
    return Collectives(message_bytes, repeats, budget_s)


@pytest.mark.parametrize(
    ("launch", "asked", "said"),
    [
        (ALONE, rings(), "two ranks"),
        (TWO, rings(100.0), "4096 bytes or more, but 100"),
        (TWO, rings(float("nan")), "but nan"),
        (TWO, rings(repeats=2), "but 2 was given"),
        (replace(TWO, world_size=65), Collectives(None, 7, 1.0, pairs=True), "at most 64 ranks, but 65"),
        (TWO, rings(budget_s=0.0), "but 0 was given"),
        (ALONE, P2P(None, (4,), 7, 1.0), "two ranks"),
        (TWO, P2P(("gloo", "nccl"), (4,), 7, 1.0), "gloo, mpi, but nccl"),
        (TWO, P2P(("mpi",), (4,), 7, 1.0), "^MPI"),
        (TWO, P2P(None, (4,), 2, 1.0), "but 2 was given"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    launch: Launch, asked: Benchmark, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.comm.launchers.PREPARES_MPI", ())
    with pytest.raises(UsageError, match=said):
        run(asked, launch, device="cpu", timeouts=Timeouts(), labels={}, out=tmp_path / "result.json")
    assert not list(tmp_path.iterdir())


def test_every_pair_that_fits_on_a_node_is_there_once() -> None:
    assert pairs(8) == [*((1, g1) for g1 in range(2, 9)), (2, 2), (2, 3), (2, 4), (3, 2), (4, 2)]
    assert pairs(2) == [(1, 2)]
    assert pairs(1) == []


@pytest.mark.parametrize(("g0", "g1"), [(1, 2), (2, 2), (4, 2), (2, 4), (1, 8)])
def test_groups_are_those_of_a_grid_whose_inner_axes_have_g0_ranks(g0: int, g1: int) -> None:
    grid = Grid(x=g0, y=g1, data=8 // (g0 * g1))
    assert set(outer_groups(range(8), g0, g1)) == {grid.members(Axis.Y, rank) for rank in range(8)}


def test_ranks_that_fill_no_whole_group_stay_out() -> None:
    assert outer_groups([10, 11, 12, 13, 14, 15, 16, 17], 1, 3) == [(10, 11, 12), (13, 14, 15)]
    assert outer_groups(range(8), 3, 2) == [(0, 3), (1, 4), (2, 5)]


def test_nodes_are_hosts_of_as_many_ranks_as_the_smallest_has() -> None:
    assert nodes_of(["a", "b", "b", "a", "b"]) == [[0, 3], [1, 2]]


def test_messages_shrink_to_pages() -> None:
    assert sizes(1 << 24) == [1 << 24, 1 << 21, 1 << 18, 1 << 15, 1 << 12]
    assert sizes(5000) == [5000]


def test_the_median_counts_and_small_messages_are_sent_in_a_row() -> None:
    lengths = iter([9.0, 0.004, 0.02, 0.03, 0.01, 0.05, 0.04])  # one warms up, one tells how many make a sample
    taken = Sampler(World(Comm(Grid())), 5, 1e9).take(lambda calls: calls * next(lengths))
    assert (taken.samples, taken.calls) == (5, 5)
    assert (taken.median_s, taken.low_s, taken.high_s, taken.average_s) == pytest.approx((0.03, 0.01, 0.05, 0.03))


def test_what_takes_long_is_one_call_a_sample_and_fewer_of_them_where_the_budget_ends() -> None:
    lengths = iter([9.0, 2.0, 1.0, 3.0])
    taken = Sampler(World(Comm(Grid())), 7, 1e-9).take(lambda calls: calls * next(lengths))
    assert (taken.samples, taken.calls) == (3, 1)
    assert (taken.median_s, taken.low_s, taken.high_s, taken.average_s) == pytest.approx((2.0, 1.0, 3.0, 2.0))


def test_what_a_call_takes_of_the_processor_is_no_time_asleep() -> None:
    def busy(calls: int) -> float:
        start = time.process_time()
        while time.process_time() - start < 0.02 * calls:
            pass
        time.sleep(0.1)
        return 1.0 * calls

    assert Sampler(World(Comm(Grid())), 3, 1e-9).take(busy).processor_s == pytest.approx(0.02, rel=0.2)


def measured_rings(comm: Comm) -> Links:
    """Five ranks as two nodes, of which one has a rank too many."""
    socket.gethostname = lambda: "abbab"[comm.rank]  # type: ignore[assignment]
    return Collectives(40000.0, 3, 1e-9).links(World(comm))


def test_ranks_of_several_nodes_measure_within_and_between_them() -> None:
    first, *others = run_processes(Grid(5), measured_rings)
    assert all(other == first for other in others)
    assert (first.nodes, first.devices_per_node, first.message_bytes) == (2, 2, 40000)
    assert [shape(ring) for ring in first.within] == [(1, 2, 2, 1)]
    assert [shape(ring) for ring in first.alone] == [(2, 2, 1, 2)]
    assert [shape(ring) for ring in first.shared] == [(1, 4, 1, 2), (2, 2, 2, 2)]
    assert first.fitted is not None
    assert first.fitted.bytes_per_s > 0
    for ring in (*first.within, *first.alone, *first.shared):
        of_size = [ring.times[place : place + 3] for place in range(0, len(ring.times), 3)]
        assert len(of_size) == (1 if ring in first.shared else 2)
        for size, (gather, scatter, reduce) in zip((40000, 5000), of_size, strict=False):
            assert [one.kind for one in (gather, scatter, reduce)] == ["all_gather", "reduce_scatter", "all_reduce"]
            assert gather.input_bytes * ring.ranks == scatter.input_bytes == reduce.input_bytes == size
            assert (gather.moved_bytes, scatter.moved_bytes) == pytest.approx([size * (1 - 1 / ring.ranks)] * 2)
            assert reduce.moved_bytes == pytest.approx(2 * scatter.moved_bytes)
        for one in ring.times:
            assert one.low_s <= one.median_s <= one.high_s
            assert one.processor_s is not None
            assert one.processor_s > 0
            assert one.bytes_per_s == pytest.approx(one.moved_bytes / one.median_s)
        together = [sum(values) for values in zip(*((t.moved_bytes, t.median_s) for t in of_size[0]), strict=True)]
        assert ring.bytes_per_s == pytest.approx(together[0] / together[1])


def measured_broadcasts(comm: Comm) -> Links:
    socket.gethostname = lambda: "aab"[comm.rank]  # type: ignore[assignment]
    return Collectives(40000.0, 3, 1e-9, pairs=True).broadcasts(World(comm))


def test_each_two_ranks_and_more_and_more_of_them_broadcast() -> None:
    first, *others = run_processes(Grid(3), measured_broadcasts)
    assert all(other == first for other in others)
    assert (first.nodes, first.message_bytes, first.within, first.fitted) == (2, 40000, (), None)
    assert [one.ranks for one in first.broadcasts] == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    for one in first.broadcasts:
        assert 0 < one.low_s <= one.median_s <= one.high_s
        assert one.bytes_per_s == pytest.approx(40000 / one.median_s)


@pytest.mark.parametrize(("ranks", "counts"), [(2, []), (4, [4]), (6, [4, 6]), (8, [4, 8]), (9, [4, 8, 9])])
def test_groups_of_more_than_two_double_up_to_all(ranks: int, counts: list[int]) -> None:
    groups = list_groups(ranks)
    assert len(groups) == ranks * (ranks - 1) // 2 + len(counts)
    assert [group for group in groups if len(group) > 2] == [tuple(range(count)) for count in counts]


def shape(ring: Rings) -> tuple[int, int, int, int]:
    return ring.apart, ring.ranks, ring.groups, ring.nodes


def test_the_command_writes_a_result_with_the_network_and_every_host(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    codes, said = finish(
        start(2, "bench", "collectives", "--bytes", "65536", "--time-budget", "1e-3", "--out", str(out))
    )
    assert codes == [0, 0], said
    result = schema.read(out)
    assert (result.kind, result.status, result.ranks, result.dtype) == ("collectives", "ok", 2, "fp32")
    assert result.links is not None
    assert [shape(ring) for ring in result.links.within] == [(1, 2, 1, 1)]
    assert not result.links.alone
    assert result.links.fitted is None
    assert result.provenance.hosts == (socket.gethostname(),)
    assert result.transport is not None
    assert result.transport.networks[0].name == "tcp"


def test_messages_beyond_the_memory_are_a_failure_with_its_reason(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    codes, said = finish(start(2, "bench", "collectives", "--bytes", "1e12", "--out", str(out)))
    assert codes == [1, 1], said
    result = schema.read(out)
    assert (result.status, result.links) == ("failed", None)
    assert result.reason is not None
    assert "take 6e+03 GB" in result.reason
    assert result.reason in said[0]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1KiB..4KiB", (1024, 2048, 4096)), ("100..300", (100, 200)), ("1MiB,4", (4, 1 << 20)), ("1GiB", (1 << 30,))],
)
def test_lengths_double_or_are_listed(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "0..8", "8..4", "6", "2GiB", "1KB", "4..8,16", "4,,8", "4..8..16"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"but '{re.escape(text)}'"):
        parse_lengths(text)


def test_back_ends_are_named_once_by_commas() -> None:
    assert parse_backends("mpi,gloo,mpi") == ("mpi", "gloo")
    with pytest.raises(UsageError, match=r"gloo, mpi, nccl, .*'memory'"):
        parse_backends("gloo,memory")


def test_what_is_compared_takes_turns() -> None:
    called = []

    def work(name: str, seconds: float) -> float:
        called.append(name)
        return seconds

    sampler = Sampler(World(Comm(Grid())), 3, 1e9)
    quick, slow = sampler.in_turns([lambda calls: work("quick", 0.01 * calls), lambda calls: work("slow", 2.0)])
    assert called == ["quick"] * 2 + ["slow"] * 2 + ["quick", "slow"] * 3
    assert (quick.calls, quick.samples, slow.calls, slow.samples) == (2, 3, 1, 4)
    assert (quick.average_s, slow.median_s) == pytest.approx((0.01, 2.0))
    assert not sampler.spent


def measured_transfers(comm: Comm) -> list[Transfer]:
    """Four ranks as two nodes, and then a time budget that is over with the first size."""
    socket.gethostname = lambda: "abab"[comm.rank]  # type: ignore[assignment]
    world, found, few = World(comm), dict[str, list[Transfer]](), dict[str, list[Transfer]]()
    P2P(("gloo",), (4, 65536), 3, 1e9).measure(world, found)
    P2P(("gloo",), (8, 16), 3, 1e-9).measure(world, few)
    assert {one.num_bytes for one in few["transfers"]} == {8}
    return found["transfers"]


def test_ranks_send_within_a_node_and_between_two() -> None:
    first, *others = run_processes(Grid(4), measured_transfers)
    assert all(other == first for other in others)
    within = [(what, "gloo", 1, 2) for what in ("message", "all_reduce")]
    between = [("message", "gloo", 2, 2), ("all_reduce", "gloo", 2, 4)]
    expected = [(*one, size) for size in (4, 65536) for one in within + between]
    assert [(one.operation, one.backend, one.nodes, one.ranks, one.num_bytes) for one in first] == expected
    for one in first:
        assert 0 < one.low_s <= one.median_s <= one.high_s
        assert 0 < one.average_s <= one.high_s


def test_the_command_writes_transfers(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    options = ["--backend", "gloo", "--sizes", "1KiB", "--repeats", "3", "--device", "cpu", "--out", str(out)]
    codes, said = finish(start(2, "bench", "p2p", *options))
    assert codes == [0, 0], said
    result = schema.read(out)
    assert (result.kind, result.status, result.ranks, result.dtype) == ("p2p", "ok", 2, "fp32")
    assert [(one.operation, one.backend, one.nodes) for one in result.transfers] == [
        ("message", "gloo", 1),
        ("all_reduce", "gloo", 1),
    ]
    head, rows = P2P.table(result)
    assert head == ("transfer", "bytes", "gloo µs")
    assert [row[1] for row in rows] == ["1024", "1024"]


def test_mpi_runs_beside_the_others_under_its_own_launcher(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [*mpirun(2), sys.executable, "-m", "engine", "bench", "p2p", "--sizes", "4,1MiB", "--repeats", "3"]
    ended = subprocess.run(
        [*command, "--device", "cpu", "--out", str(out)],
        env=environment(),
        timeout=LONG_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = schema.read(out)
    assert result.provenance.launcher == "mpirun"
    assert {(one.operation, one.num_bytes) for one in result.transfers if one.backend == "mpi"} == {
        ("message", 4),
        ("message", 1 << 20),
        ("all_reduce", 4),
        ("all_reduce", 1 << 20),
    }
