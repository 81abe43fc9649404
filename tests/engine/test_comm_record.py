"""What the funnel tells the recorder of each collective, and when."""

import torch
from real_ranks import run_processes
from ticks import Ticks
from torch.utils._python_dispatch import TorchDispatchMode
from virtual_ranks import run_ranks

from engine.comm.collective import Kind
from engine.comm.funnel import Comm
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder


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


def _reduce_scatter(comm: Comm) -> tuple[list[str], bool, bool]:
    """Which operations it is made of; whether its end was seen; whether its wait is over when the local sum begins."""
    clock = Ticks()
    operations: dict[str, float] = {}

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            operations[str(func)] = clock.now
            return func(*args, **(kwargs or {}))

    comm.recorder = Recorder(clock)  # type: ignore[arg-type]
    comm.recorder.start_step("all")
    with Noting():
        comm.issue(Kind.REDUCE_SCATTER, Axis.X, torch.ones(4)).wait()
    (pending,) = comm.recorder._collectives
    assert isinstance(pending.resumed, float)
    named = [name for name in operations if name.startswith("c10d") or "sum" in name]
    return named, pending.done is not None, pending.resumed <= operations["aten.sum.IntList_out"]


def test_gloo_scatters_by_an_exchange_and_a_sum_of_its_own_which_is_compute() -> None:
    named, ended, in_time = run_processes(Grid(2), _reduce_scatter)[0]
    assert named == ["c10d.alltoall_base_.default", "aten.sum.IntList_out"]
    assert ended
    assert in_time


def _waits(comm: Comm) -> list[tuple[bool, bool]]:
    """Of each flight, whether nothing could avoid the wait, and whether that began with the issue."""
    comm.recorder = Recorder(Ticks())  # type: ignore[arg-type]
    comm.recorder.start_step("all")
    early, late = (comm.issue(Kind.ALL_REDUCE, Axis.X, torch.ones(3)) for _ in range(2))
    early.wait()
    late.wait(unavoidable=True)
    comm.run(Kind.ALL_REDUCE, Axis.X, torch.ones(3))
    comm.issue(Kind.ALL_REDUCE, Axis.X, torch.ones(3), at_once=True).wait()
    collectives = [(pending.blocking, pending.waited == pending.issued) for pending in comm.recorder._collectives]
    comm.recorder.end_step()
    return collectives


def test_a_wait_that_nothing_could_avoid_and_one_that_comes_at_once_are_told_from_the_others() -> None:
    """On CUDA what is waited for at once runs on the computing stream, where after it nothing is left to wait for."""
    assert run_ranks(Grid(2), _waits)[0] == [(False, False), (True, False), (True, True), (False, True)]
