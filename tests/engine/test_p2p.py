"""Messages and sums by back end: who takes part, whose turn it is, and one valid result."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_command import finish, start
from mpi_ranks import environment, mpirun
from real_ranks import run_processes
from waiting import LONG_S

from engine.bench.p2p import P2P, parse_backends, parse_lengths
from engine.bench.world import Sampler, World
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, from_environment
from engine.errors import UsageError
from engine.grid import Grid
from engine.result import schema
from engine.result.schema.bench import Transfer

TWO = Launch(0, 2, 0, "torchrun", "127.0.0.1", 20000)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("1KiB..4KiB", (1024, 2048, 4096)), ("100..300", (100, 200)), ("1MiB,4", (4, 1 << 20)), ("1GiB", (1 << 30,))],
)
def test_sizes_double_or_are_listed(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "0..8", "8..4", "6", "2GiB", "1KB", "4..8,16", "4,,8", "4..8..16"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"such as 1KiB\.\.256MiB, but '" + text.replace(".", r"\.")):
        parse_lengths(text)


def test_back_ends_are_named_once_by_commas() -> None:
    assert parse_backends("mpi,gloo,mpi") == ("mpi", "gloo")
    with pytest.raises(UsageError, match=r"gloo, mpi, nccl, .*'memory'"):
        parse_backends("gloo,memory")


@pytest.mark.parametrize(
    ("launch", "backends", "repeats", "said"),
    [
        (from_environment({}), None, 7, "two ranks"),
        (TWO, ("gloo", "nccl"), 7, "gloo, mpi, but nccl"),
        (TWO, ("mpi",), 7, "MPI"),
        (TWO, None, 2, "but 2 was given"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(
    launch: Launch, backends, repeats: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("engine.comm.launchers.PREPARES_MPI", ())
    with pytest.raises(UsageError) as refused:
        P2P(backends, (4,), repeats, 1.0).check(launch, torch.device("cpu"))
    assert said in str(refused.value)


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


def _measured(comm: Comm) -> list[Transfer]:
    """Four ranks as two nodes, and then a time budget that is over with the first size."""
    socket.gethostname = lambda: "abab"[comm.rank]  # type: ignore[assignment]
    world, found, few = World(comm), dict[str, list[Transfer]](), dict[str, list[Transfer]]()
    P2P(("gloo",), (4, 65536), 3, 1e9).measure(world, found)
    P2P(("gloo",), (8, 16), 3, 1e-9).measure(world, few)
    assert {one.num_bytes for one in few["transfers"]} == {8}
    return found["transfers"]


def test_ranks_measure_within_a_node_and_between_two() -> None:
    first, *others = run_processes(Grid(4), _measured)
    assert all(other == first for other in others)
    within = [(what, "gloo", 1, 2) for what in ("message", "all_reduce")]
    between = [("message", "gloo", 2, 2), ("all_reduce", "gloo", 2, 4)]
    expected = [(*one, size) for size in (4, 65536) for one in within + between]
    assert [(one.operation, one.backend, one.nodes, one.ranks, one.num_bytes) for one in first] == expected
    for one in first:
        assert 0 < one.low_s <= one.median_s <= one.high_s
        assert 0 < one.average_s <= one.high_s


def test_the_command_writes_a_result(tmp_path: Path) -> None:
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
