"""A handle keeps its buffers, and is waited for once."""

import re
from datetime import timedelta

import pytest
import torch
from real_ranks import run_processes
from torch.multiprocessing.reductions import StorageWeakRef
from virtual_ranks import LazyComm, run_ranks

from engine.comm.backend import Arriving, Handle
from engine.comm.collective import Kind
from engine.comm.contact import LostContact
from engine.comm.funnel import Comm
from engine.grid import Axis, Grid

BOTH = pytest.mark.parametrize("run", [run_processes, run_ranks], ids=["processes", "virtual"])


def _handles(comm: Comm) -> tuple[int, int, int]:
    handles = [comm.issue(Kind.ALL_GATHER, Axis.X, torch.ones(1)) for _ in range(3)]
    counts = [len(comm.outstanding.in_flight)]
    handles[1].wait()
    counts.append(len(comm.outstanding.in_flight))
    with pytest.raises(RuntimeError, match="twice"):
        handles[1].wait()
    comm.abandon()
    return counts[0], counts[1], len(comm.outstanding.in_flight)


@BOTH
def test_a_handle_is_waited_for_once_and_is_in_flight_until_then(run) -> None:  # type: ignore[no-untyped-def]
    assert run(Grid(2), _handles) == [(3, 2, 0)] * 2


def _kept(comm: Comm) -> list[bool]:
    sent = torch.ones(1000)
    memory = StorageWeakRef(sent.untyped_storage())
    handle = comm.issue(Kind.ALL_GATHER, Axis.X, sent)
    del sent
    kept = [not memory.expired()]
    handle.wait()
    return [*kept, not memory.expired()]


def test_a_handle_keeps_what_is_sent_until_it_is_waited_for() -> None:
    assert run_ranks(Grid(2), _kept) == [[True, False]] * 2


class _Leaving(Arriving):
    """A message that leaves when it is told to."""

    left = False

    def __call__(self) -> None:
        assert self.left

    def arrived(self) -> bool:
        return self.left


def test_a_message_that_has_left_gives_its_memory_up_before_it_is_waited_for() -> None:
    message, leaving = torch.ones(1000), _Leaving()
    memory = StorageWeakRef(message.untyped_storage())
    handle = Handle(message, message, leaving)
    del message
    assert (handle.release(), memory.expired()) == (False, False)
    leaving.left = True
    assert (handle.release(), memory.expired()) == (True, True)
    handle.wait()
    with pytest.raises(RuntimeError, match="twice"):
        handle.wait()


def test_what_only_a_wait_tells_to_have_left_keeps_its_memory() -> None:
    handle = Handle(torch.ones(1), finish=lambda: pytest.fail("nobody waits for it"))
    assert not handle.release()


def test_what_is_abandoned_is_waited_for_in_its_order_even_if_it_fails() -> None:
    class Noting(LazyComm):
        """Notes the order of the waits, of which the second fails."""

        def _start(self, kind, axis, lane, *others):  # type: ignore[no-untyped-def]
            finish, number = super()._start(kind, axis, lane, *others), len(waits[self.rank])
            waits[self.rank].append(-1)

            def wait() -> None:
                waits[self.rank][number] = max(waits[self.rank]) + 1
                finish()
                if number == 1:
                    raise RuntimeError("a rank was lost")

            return wait

    def abandon(comm: Comm) -> None:
        for _ in range(3):
            comm.issue(Kind.ALL_REDUCE, Axis.X, torch.ones(1))
        comm.abandon()
        assert not comm.outstanding.in_flight

    waits: list[list[int]] = [[], []]
    run_ranks(Grid(2), abandon, of=Noting)
    assert waits == [[0, 1, 2], [0, 1, 2]]


def _unanswered(comm: Comm) -> str:
    """Of a Comm with a shorter time-out than its process group's; the second rank never comes."""
    hasty = Comm(comm.grid, timeout=timedelta(seconds=20))
    if comm.rank == 0:
        try:
            hasty.run(Kind.ALL_REDUCE, Axis.X, torch.ones(1))
        except LostContact as error:
            comm.barrier()
            return str(error)
    comm.barrier()
    return ""


def test_a_collective_that_is_not_answered_ends_after_the_time_given() -> None:
    told = run_processes(Grid(2), _unanswered)[0]
    assert re.search(r"rank 1 .* \(gloo: .*Timed out", told)
