"""The funnel: its checks, its handles, its groups and its record."""

import resource
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from real_ranks import run_processes
from virtual_ranks import run_ranks

from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.funnel import Comm
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder


def test_an_axis_of_one_rank_returns_its_input_and_records_nothing() -> None:
    recorder = Recorder()
    comm = Comm(Grid(), recorder=recorder)
    recorder.start_step("all")
    tensor = torch.arange(6.0)
    for kind in set(Kind) - set(POINT_TO_POINT):
        assert comm.run(kind, Axis.Z, tensor) is tensor
    recorder.end_step()
    assert recorder.total.tallies == {}


def _collectives(comm: Comm) -> dict[str, torch.Tensor]:
    mine = torch.arange(4.0) + 10 * comm.rank
    return {
        "all_gather": comm.run(Kind.ALL_GATHER, Axis.X, mine),
        "reduce_scatter": comm.run(Kind.REDUCE_SCATTER, Axis.X, mine),
        "all_reduce": comm.run(Kind.ALL_REDUCE, Axis.X, mine.clone()),
        "max_reduce": comm.run(Kind.MAX_REDUCE, Axis.X, mine.clone()),
        "everyone": comm.everyone(torch.tensor([comm.rank])),
    }


@pytest.mark.parametrize("run", [run_processes, run_ranks], ids=["gloo", "virtual"])
def test_collectives_act_along_their_axis_only(run) -> None:  # type: ignore[no-untyped-def]
    results = run(Grid(2, 1, 1, 2), _collectives)
    for rank, got in enumerate(results):
        low = 20 * (rank // 2)
        a, b = torch.arange(4.0) + low, torch.arange(4.0) + low + 10
        assert torch.equal(got["all_gather"], torch.cat([a, b]))
        assert torch.equal(got["reduce_scatter"], (a + b).chunk(2)[rank % 2])
        assert torch.equal(got["all_reduce"], a + b)
        assert torch.equal(got["max_reduce"], b)
        assert got["everyone"].flatten().tolist() == [0, 1, 2, 3]


def _refusals(comm: Comm) -> list[str]:
    messages = []
    tries = [
        (Kind.REDUCE_SCATTER, torch.zeros(5), None),
        (Kind.ALL_GATHER, torch.zeros(4), torch.zeros(7)),
        (Kind.ALL_GATHER, torch.zeros(4), torch.zeros(8, dtype=torch.float64)),
        (Kind.ALL_REDUCE, torch.zeros(4, 4).t()[1:], None),
        (Kind.ALL_REDUCE, torch.zeros(0), None),
    ]
    for kind, tensor, out in tries:
        try:
            comm.issue(kind, Axis.X, tensor, out=out)
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_wrong_sizes_dtypes_and_layouts_are_refused_before_they_are_sent() -> None:
    messages = run_ranks(Grid(2), _refusals)[0]
    assert len(messages) == 5
    assert "can't split 5 elements" in messages[0]
    assert "got a buffer of 7" in messages[1]
    assert "torch.float64" in messages[2]


def test_a_handle_is_waited_for_once() -> None:
    handle = Comm(Grid()).issue(Kind.ALL_REDUCE, Axis.X, torch.ones(1))
    handle.wait()
    with pytest.raises(RuntimeError, match="twice"):
        handle.wait()


def _record(comm: Comm) -> dict[tuple[str, str], tuple[int, int, bool]]:
    assert comm.recorder is not None
    comm.run(Kind.ALL_GATHER, Axis.X, torch.zeros(7))  # outside of a step
    comm.recorder.start_step("all")
    comm.run(Kind.ALL_GATHER, Axis.X, torch.zeros(3, dtype=torch.bfloat16))
    comm.run(Kind.ALL_GATHER, Axis.X, torch.zeros(3, dtype=torch.bfloat16))
    comm.run(Kind.REDUCE_SCATTER, Axis.X, torch.zeros(8))
    comm.recorder.end_step()
    return {key: (t.calls, t.num_bytes, t.time_s > 0) for key, t in comm.recorder.total.tallies.items()}


def test_the_recorder_counts_calls_input_bytes_and_time() -> None:
    assert run_processes(Grid(2), _record)[1] == {
        ("all_gather", "x"): (2, 12, True),
        ("reduce_scatter", "x"): (1, 32, True),
    }


def test_a_rank_of_32768_holds_only_its_own_groups() -> None:
    grid = Grid(8, 4, 16, 64)
    dist.init_process_group("fake", rank=4711, world_size=grid.size)
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        comm = Comm(grid, timeout=timedelta(seconds=5))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert comm.coords == grid.coords(4711)
        assert grown < 50 * 1024
        assert comm.run(Kind.ALL_GATHER, Axis.DATA, torch.zeros(2)).numel() == 128
    finally:
        dist.destroy_process_group()


def _waits(comm: Comm) -> list[bool]:
    assert comm.recorder is not None
    comm.recorder.start_step("all")
    early, late = (comm.issue(Kind.ALL_REDUCE, Axis.X, torch.ones(3)) for _ in range(2))
    early.wait()
    late.wait(unavoidable=True)
    comm.run(Kind.ALL_REDUCE, Axis.X, torch.ones(3))
    flights = [flight.blocking for flight in comm.recorder._flights]
    comm.recorder.end_step()
    return flights


def test_a_wait_that_nothing_could_avoid_is_told_from_the_others() -> None:
    assert run_ranks(Grid(2), _waits, record=True)[0] == [False, True, True]
