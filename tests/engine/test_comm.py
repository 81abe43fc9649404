"""The funnel: its checks, channels, groups and handles, and what it records."""

import re
import resource
import time
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from real_ranks import run_processes
from ticks import Ticks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from virtual_ranks import LazyComm, run_ranks

from engine.comm.backend import Handle, PendingMessage
from engine.comm.collective import POINT_TO_POINT, ROOTED, Kind, Lane
from engine.comm.contact import LostContact
from engine.comm.funnel import Comm
from engine.comm.groups import FakeChannel, fake_group
from engine.errors import RunError
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder

ALL = pytest.mark.parametrize("run", [run_processes, run_ranks], ids=["gloo", "virtual"])


def test_an_axis_of_one_rank_returns_its_input_and_records_nothing() -> None:
    recorder = Recorder()
    comm = Comm(Grid(), recorder=recorder)
    recorder.start_step("all")
    tensor, out = torch.arange(6.0), torch.zeros(6)
    for kind in set(Kind) - set(POINT_TO_POINT):
        assert comm.issue(kind, Axis.Z, tensor, root=0 if kind in ROOTED else None).wait() is tensor
    assert comm.run(Kind.ALL_GATHER, Axis.Z, tensor, out=out) is out
    assert torch.equal(out, tensor)
    assert comm.run(Kind.REDUCE_SCATTER, Axis.Z, tensor, out=tensor) is tensor
    recorder.end_step()
    assert recorder.total.tallies == {}


def _collectives(comm: Comm) -> dict[str, torch.Tensor]:
    mine, whole, half = torch.arange(4.0) + 10 * comm.rank, torch.zeros(8), torch.zeros(2)
    assert comm.run(Kind.ALL_GATHER, Axis.X, mine, out=whole) is whole
    assert comm.run(Kind.REDUCE_SCATTER, Axis.X, mine, out=half) is half
    return {
        "all_gather": comm.run(Kind.ALL_GATHER, Axis.X, mine),
        "reduce_scatter": comm.run(Kind.REDUCE_SCATTER, Axis.X, mine),
        "all_reduce": comm.run(Kind.ALL_REDUCE, Axis.X, mine.clone()),
        "max_reduce": comm.run(Kind.MAX_REDUCE, Axis.X, mine.clone()),
        "all_gather to": whole,
        "reduce_scatter to": half,
        "everyone": comm.gather_rows(torch.tensor([comm.rank])),
        "broadcast": comm.issue(Kind.BROADCAST, Axis.X, mine.clone(), root=1).wait(),
        "reduce": comm.issue(Kind.REDUCE, Axis.X, mine.clone(), root=1).wait(),
    }


@ALL
def test_collectives_act_along_their_axis_only(run) -> None:  # type: ignore[no-untyped-def]
    results = run(Grid(2, 1, 1, 2), _collectives)
    for rank, got in enumerate(results):
        low = 20 * (rank // 2)
        a, b = torch.arange(4.0) + low, torch.arange(4.0) + low + 10
        assert torch.equal(got["all_gather"], torch.cat([a, b]))
        assert torch.equal(got["all_gather to"], torch.cat([a, b]))
        assert torch.equal(got["reduce_scatter"], (a + b).chunk(2)[rank % 2])
        assert torch.equal(got["reduce_scatter to"], (a + b).chunk(2)[rank % 2])
        assert torch.equal(got["all_reduce"], a + b)
        assert torch.equal(got["max_reduce"], b)
        assert got["everyone"].flatten().tolist() == [0, 1, 2, 3]
        assert torch.equal(got["broadcast"], b)
        assert rank % 2 == 0 or torch.equal(got["reduce"], a + b)


def _exchange(comm: Comm) -> tuple[list[float], dict[tuple[str, str], tuple[int, int]]]:
    """Send to both neighbours on x first, and receive then; return the messages, and what was recorded."""
    ranks, own = comm.grid.x, comm.coords.x
    comm.recorder = Recorder()
    comm.recorder.start_step("all")
    sent, received, handles = [], [], []
    for peer in ((own + 1) % ranks, (own - 1) % ranks):
        sent += [torch.full((100_000,), 10.0 * own + peer), torch.full((2, 1), -1.0 * own)]
        handles += [comm.issue(Kind.SEND, Axis.X, tensor, peer=peer) for tensor in sent[-2:]]
    for peer in ((own - 1) % ranks, (own + 1) % ranks):
        received += [torch.zeros(100_000), torch.zeros(2)]
        handles += [comm.issue(Kind.RECV, Axis.X, tensor, peer=peer) for tensor in received[-2:]]
    results = [handle.wait() for handle in handles]
    assert all(ours is theirs for ours, theirs in zip(results, sent + received, strict=True))
    comm.recorder.end_step()
    found = {key: (t.calls, t.num_bytes) for key, t in comm.recorder.total.tallies.items()}
    return [value for tensor in received for value in (tensor[0].item(), tensor[-1].item())], found


@ALL
def test_neighbours_exchange_messages_without_an_order_between_them(run) -> None:  # type: ignore[no-untyped-def]
    for rank, (got, recorded) in enumerate(run(Grid(3, 1, 1, 2), _exchange)):
        own = rank % 3
        before, after = (own - 1) % 3, (own + 1) % 3
        assert got == [v for peer in (before, after) for v in (10.0 * peer + own,) * 2 + (-1.0 * peer,) * 2]
        assert recorded == {("send", "x"): (4, 2 * (400_000 + 8)), ("recv", "x"): (4, 2 * (400_000 + 8))}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_fake_back_end_does_everything_on_the_cpu_and_on_the_meta_device(device: str) -> None:
    grid = Grid(4, 1, 2, 1)
    with fake_group(grid, 5):
        recorder = Recorder(Ticks())  # type: ignore[arg-type]
        comm = Comm(grid, device=device, recorder=recorder)
        assert comm.gather_rows(torch.ones(3)).shape == (8, 3)
        assert comm.gather_rows(torch.ones(3)).device.type == device
        recorder.start_step("all")
        tensor = torch.zeros(8, device=device)
        sizes = {
            Kind.ALL_GATHER: 32,
            Kind.REDUCE_SCATTER: 2,
            Kind.ALL_REDUCE: 8,
            Kind.MAX_REDUCE: 8,
            Kind.BROADCAST: 8,
            Kind.REDUCE: 8,
            Kind.SEND: 8,
            Kind.RECV: 8,
        }
        assert sizes.keys() == set(Kind)
        for kind, size in sizes.items():
            peer = 3 if kind in POINT_TO_POINT else None
            root = 1 if kind in ROOTED else None
            result = comm.issue(kind, Axis.X, tensor, peer=peer, root=root).wait()
            assert (result.numel(), result.device.type) == (size, device)
        recorder.end_step()
        assert {key: (t.calls, t.num_bytes) for key, t in recorder.total.tallies.items()} == {
            (kind, "x"): (1, 32) for kind in Kind
        }
        assert all(f.issued < f.done < f.waited < f.resumed for f in recorder.total.collectives)
        recorder.start_step("all")
        for lane in (Lane.MAIN, Lane.GATHER):
            comm.issue(Kind.ALL_GATHER, Axis.Z, tensor, lane=lane).wait()
        recorder.end_step()
        assert [event.lane for event in recorder.total.events if event.kind == "collective"] == ["z", "z gather"]


ZEROS = torch.zeros(4)
REFUSED = {
    "5 elements": (Kind.REDUCE_SCATTER, torch.zeros(5), None, None),
    "8 contiguous .* 7 ": (Kind.ALL_GATHER, ZEROS, torch.zeros(7), None),
    "8 contiguous .* 8 torch.float64": (Kind.ALL_GATHER, ZEROS, torch.zeros(8, dtype=torch.float64), None),
    "8 contiguous .* 8 torch.float32": (Kind.ALL_GATHER, ZEROS, torch.zeros(8, 2)[:, 0], None),
    r"\(3, 4\)": (Kind.ALL_REDUCE, torch.zeros(4, 4).t()[1:], None, None),
    r"\(0,\)": (Kind.ALL_REDUCE, torch.zeros(0), None, None),
    "^all_reduce .* no other": (Kind.ALL_REDUCE, ZEROS, ZEROS, None),
    "^all_reduce .* no peer": (Kind.ALL_REDUCE, ZEROS, None, 1),
    "^send .* got None": (Kind.SEND, ZEROS, None, None),
    "^send .* own 0, got 0": (Kind.SEND, ZEROS, None, 0),
    "^recv .* from 0 to 1 .* got 2": (Kind.RECV, ZEROS, None, 2),
    "^recv .* got -1": (Kind.RECV, ZEROS, None, -1),
    "^recv .* no other": (Kind.RECV, ZEROS, ZEROS, 1),
}


@pytest.mark.parametrize("match", REFUSED)
def test_wrong_buffers_and_peers_are_refused_before_anything_is_sent(match: str) -> None:
    kind, tensor, out, peer = REFUSED[match]
    with fake_group(Grid(2), 0), pytest.raises(ValueError, match=match):
        Comm(Grid(2)).issue(kind, Axis.X, tensor, out=out, peer=peer)


def test_a_grid_needs_a_process_group_of_its_size_and_a_known_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="initialised"):
        Comm(Grid(2))
    with fake_group(Grid(2), 0):
        with pytest.raises(RuntimeError, match=r"4 ranks, .* 2"):
            Comm(Grid(4))
        monkeypatch.setattr(dist, "get_backend", lambda: "mpi")
        with pytest.raises(RunError, match=r"nccl .* mpi"):
            Comm(Grid(2))


def test_a_rank_of_32768_holds_only_its_own_groups() -> None:
    grid = Grid(8, 4, 16, 64)
    with fake_group(grid, 4711):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        comm = Comm(grid, timeout=timedelta(seconds=5))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert comm.coords == grid.coords(4711)
        channel = comm._channels[Axis.Z, Lane.GATHER]
        assert isinstance(channel, FakeChannel)
        assert channel._group.group_desc == "z gather", "for the back end's own messages"
        assert grown < 50 * 1024
        assert comm.run(Kind.ALL_GATHER, Axis.DATA, torch.zeros(2)).numel() == 128


def test_a_barrier_lets_nobody_pass_before_all_have_come() -> None:
    come: list[int] = []

    def pass_barrier(comm: Comm) -> int:
        come.append(comm.rank)
        comm.barrier()
        return len(come)

    assert run_ranks(Grid(2, 2, 1, 2), pass_barrier) == [8] * 8


def test_a_barrier_makes_the_host_wait_too() -> None:
    operations: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    with fake_group(Grid(2), 0):
        comm = Comm(Grid(2))
        with Noting():
            comm.barrier()
    assert operations[-2:] == ["c10d.allreduce_.default", "aten._local_scalar_dense.default"], "a value is read"


def _asked_after_a_while(comm: Comm) -> int:
    """Have rank 1 wait for a late message; return how often it asks."""
    if comm.rank == 0:
        comm.barrier()
        time.sleep(0.3)
        comm.issue(Kind.SEND, Axis.X, torch.ones(3), peer=1).wait()
        return 0
    handle = comm.issue(Kind.RECV, Axis.X, torch.zeros(3), peer=0)
    comm.barrier()
    with patch.object(Handle, "arrived", autospec=True, side_effect=Handle.arrived) as arrived:
        comm.wait_any([handle])
    assert handle.wait().sum() == 3
    return arrived.call_count


def test_who_waits_for_messages_of_gloo_is_told_and_takes_no_time_of_the_processor() -> None:
    assert run_processes(Grid(2), _asked_after_a_while)[1] <= 4


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
    """Return its operations, whether its end was seen, and whether its wait is over before the local sum."""
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
    """Return of each collective whether its wait was unavoidable, and whether that began with the issue."""
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


class _Leaving(PendingMessage):
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
        """Comm that notes the order of the waits, of which the second fails."""

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
    """Time out sooner than the process group; the second rank never comes."""
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
    assert re.search(r"rank 1.*\(gloo:.*Timed out", told)
