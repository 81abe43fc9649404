"""The channel of ranks that share memory: against sums made by hand, and what becomes of its blocks."""

import os
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from real_ranks import run_processes
from torch import Tensor

from engine.comm import neighbours, shared_memory
from engine.comm.collective import Kind, Lane
from engine.comm.contact import Line, LostContact
from engine.comm.funnel import Comm
from engine.comm.gloo import GlooChannel
from engine.comm.mail import Mail
from engine.comm.shared_memory import SMALL_BYTES, SharedMemoryChannel
from engine.grid import Axis, Grid

SIZES = (1, 3, SMALL_BYTES // 8 + 5)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64)


def _channel(comm: Comm) -> SharedMemoryChannel:
    channel = comm._channels[Axis.X, Lane.MAIN]
    assert isinstance(channel, SharedMemoryChannel)
    return channel


def _input(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers, whose sums every type holds."""
    return (torch.arange(count) % 7 + rank).to(dtype)


def _all(comm: Comm) -> Iterator[tuple[Tensor, Tensor]]:
    """Every collective, all in flight at once: what came out, and what should have."""
    ranks, own = comm.grid.x, comm.coords.x
    handles = []
    for count, dtype in product(SIZES, DTYPES):
        inputs = [_input(rank, count * ranks, dtype) for rank in range(ranks)]
        total = torch.stack(inputs).sum(0).to(dtype)
        expected = {
            Kind.ALL_GATHER: torch.cat(inputs),
            Kind.REDUCE_SCATTER: total.chunk(ranks)[own],
            Kind.ALL_REDUCE: total,
            Kind.MAX_REDUCE: inputs[-1],
        }
        handles += [(comm.issue(kind, Axis.X, inputs[own].clone()), right) for kind, right in expected.items()]
    return ((handle.wait(), right) for handle, right in handles)


def _wrong(comm: Comm) -> int:
    _channel(comm)
    return sum(not torch.equal(came, right) for _ in range(3) for came, right in _all(comm))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_of_every_size_and_type_is_exact(ranks: int) -> None:
    assert run_processes(Grid(ranks), _wrong) == [0] * ranks


def _odd(comm: Comm) -> bool:
    """In two stages, of a size that the ranks don't divide, in bf16, whose sum is to be rounded once."""
    inputs = [torch.linspace(-1, 1 + rank, SMALL_BYTES + 1).bfloat16() for rank in range(comm.grid.x)]
    total = torch.stack(inputs).float().sum(0).bfloat16()
    return torch.equal(comm.run(Kind.ALL_REDUCE, Axis.X, inputs[comm.rank]), total)


def test_a_sum_in_few_digits_is_rounded_once() -> None:
    assert run_processes(Grid(3), _odd) == [True] * 3


def _sum_of_noise(comm: Comm) -> Tensor:
    torch.manual_seed(comm.rank)
    return comm.run(Kind.ALL_REDUCE, Axis.X, torch.randn(SMALL_BYTES))


def test_all_ranks_get_the_same_sum_to_the_last_bit() -> None:
    first, *others = run_processes(Grid(3), _sum_of_noise)
    assert all(torch.equal(first, other) for other in others)


def _late(comm: Comm) -> float:
    """Rank 0 waits for its first collective last, when rank 1 has long done with it."""
    first, second = (torch.full((1000,), 1.0 + comm.rank + 10 * turn) for turn in range(2))
    early = comm.issue(Kind.ALL_REDUCE, Axis.X, first)
    if comm.rank == 1:
        early.wait()
    comm.issue(Kind.ALL_REDUCE, Axis.X, second).wait()
    for _ in range(4):
        comm.run(Kind.ALL_REDUCE, Axis.X, torch.zeros(1000))
    if comm.rank == 0:
        early.wait()
    return first.unique().item()


def test_a_block_is_kept_until_its_own_rank_has_done_with_it_too() -> None:
    assert run_processes(Grid(2), _late) == [3.0, 3.0]


def _apart(comm: Comm) -> str:
    with pytest.raises(ValueError, match="met another collective of its group"):
        comm.run(Kind.ALL_REDUCE, Axis.X, torch.ones(5 + comm.rank))
    return "told"


def test_collectives_that_do_not_belong_together_are_told() -> None:
    assert run_processes(Grid(2), _apart) == ["told"] * 2


def _room(comm: Comm) -> int:
    for _ in range(100):
        comm.run(Kind.ALL_REDUCE, Axis.X, torch.ones(1024))
    return _channel(comm)._memory._end


def test_a_neighbour_that_is_lost_is_waited_for_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    file, (listening, _), (_, speaking) = os.memfd_create("test"), os.pipe(), os.pipe()
    os.ftruncate(file, neighbours.Mapped.SIZE)
    silent = neighbours.Neighbour(neighbours.Mapped(file), listening, speaking, timeout_s=0.01)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"no answer within 0\.01 s"):
            silent.wait_for(0)
        monkeypatch.setattr(silent, "_heard", None)  # whatever listens now fails otherwise


def test_memory_that_is_full_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours.Mapped, "SIZE", 2 * neighbours.LEAST_BLOCK)
    memory = neighbours.Own(os.memfd_create("test"))
    assert [memory.take(number, 1) for number in range(2)] == [0, neighbours.LEAST_BLOCK]
    with pytest.raises(MemoryError, match="no room for 1 bytes in memory that ranks share"):
        memory.take(2, 1)


def test_blocks_are_used_again() -> None:
    assert max(run_processes(Grid(3), _room)) <= 3 * 4096


def _messages(comm: Comm) -> list[str]:
    """Of every type and size both ways at once, the last waited for first."""
    peer, wrong, handles = 1 - comm.rank, [], []
    for count, dtype in product(SIZES, DTYPES):
        comm.issue(Kind.SEND, Axis.X, _input(comm.rank, count, dtype), peer=peer).wait()
        due = torch.zeros(count, dtype=dtype)
        handles.append((comm.issue(Kind.RECV, Axis.X, due, peer=peer), _input(peer, count, dtype)))
    for handle, right in reversed(handles):
        if not torch.equal(handle.wait(), right):
            wrong.append(f"{right.numel()} {right.dtype}")
    return wrong


def test_messages_are_read_as_they_were_sent_whichever_is_waited_for_first() -> None:
    assert run_processes(Grid(2), _messages) == [[], []]


def _flood(comm: Comm) -> int:
    """More than pipes hold, both ways, before anybody reads."""
    peer, count = 1 - comm.rank, 5000
    for number in range(count):
        comm.issue(Kind.SEND, Axis.X, torch.tensor([number]), peer=peer).wait()
    came = [comm.issue(Kind.RECV, Axis.X, torch.zeros(1).long(), peer=peer).wait().item() for _ in range(count)]
    assert comm.run(Kind.ALL_REDUCE, Axis.X, torch.ones(1)).item() == 2
    return sum(one == number for number, one in enumerate(came))


def test_both_ranks_may_send_more_than_the_pipes_between_them_hold() -> None:
    assert run_processes(Grid(2), _flood) == [5000, 5000]


def _one_way(comm: Comm) -> int:
    """Rank 0 sends only, with a sum now and then so that it isn't far ahead."""
    for number in range(100):
        if comm.rank == 0:
            comm.issue(Kind.SEND, Axis.X, torch.ones(1024), peer=1).wait()
        else:
            comm.issue(Kind.RECV, Axis.X, torch.zeros(1024), peer=0).wait()
        if number % 3 == 0:
            comm.run(Kind.ALL_REDUCE, Axis.X, torch.ones(1))
    return _channel(comm)._memory._end


def test_what_was_read_is_room_for_the_next_message() -> None:
    assert max(run_processes(Grid(2), _one_way)) <= 6 * neighbours.LEAST_BLOCK


def _arrive(comm: Comm) -> list[bool]:
    """Rank 1 expects three messages, of which one comes, and then one of another size."""
    if comm.rank == 0:
        comm.barrier()
        comm.issue(Kind.SEND, Axis.X, torch.ones(3), peer=1).wait()
        comm.issue(Kind.SEND, Axis.X, torch.ones(2), peer=1).wait()
        comm.barrier()
        return []
    handles = [comm.issue(Kind.RECV, Axis.X, torch.zeros(3), peer=0) for _ in range(3)]
    found = [handles[0].arrived()]
    comm.barrier()
    comm.wait_any(handles)
    found.append(handles[0].arrived())
    assert handles[0].wait().sum() == 3
    with pytest.raises(ValueError, match="A message of 8 bytes came where 12 were to be received"):
        handles[1].wait()
    found.append(handles[2].arrived())
    comm.barrier()
    return found


def test_a_message_is_seen_to_arrive_and_its_size_is_checked() -> None:
    assert run_processes(Grid(2), _arrive) == [[], [False, True, False]]


def test_a_message_of_a_rank_that_has_ended_is_read_and_one_it_never_sent_is_told() -> None:
    memory = os.memfd_create("test")
    os.ftruncate(memory, neighbours.Mapped.SIZE)
    (listening, theirs), (unread, speaking) = os.pipe(), os.pipe()
    sender = neighbours.Neighbour(neighbours.Mapped(memory), listening, speaking, timeout_s=10)
    mail = Mail(sender.memory, sender, Line(0, "on axis x", [1], "shared memory"))  # type: ignore[arg-type]
    first, second, third = (mail.receive(torch.zeros(1), None) for _ in range(3))
    assert not first.arrived()
    for number in range(2):
        os.write(theirs, neighbours.MESSAGE.pack(neighbours.SENT + number, 0, 0, 4))
        assert first.arrived()  # who has heard of the first listens no more
    os.close(theirs)
    os.close(unread)
    first()
    second()
    assert third.arrived()
    with pytest.raises(LostContact, match="the other end is closed"):
        third()


def _on_different_hosts(comm: Comm) -> bool:
    """A second Comm of the same ranks, each of which takes itself for another host's."""
    assert isinstance(comm._channels[Axis.X, Lane.MAIN], SharedMemoryChannel)
    shared_memory.host = lambda: comm.rank
    return isinstance(Comm(comm.grid)._channels[Axis.X, Lane.MAIN], GlooChannel)


def _not_reached(comm: Comm) -> bool:
    """The same where the last rank opens no door that another finds."""
    if comm.rank == 0:
        neighbours._address = lambda number: f"\0par4d-nobody-{number}"
    neighbours.MEETING_S = 1.0
    return isinstance(Comm(comm.grid)._channels[Axis.X, Lane.MAIN], GlooChannel)


def _not_opened(comm: Comm) -> bool:
    """The same where its door can't be opened."""
    if comm.rank == 0:
        neighbours._address = lambda number: f"/par4d/no/such/folder/{number}"
    return isinstance(Comm(comm.grid)._channels[Axis.X, Lane.MAIN], GlooChannel)


@pytest.mark.parametrize("apart", [_on_different_hosts, _not_reached, _not_opened])
def test_ranks_that_share_no_memory_leave_it_to_gloo(apart) -> None:  # type: ignore[no-untyped-def]
    assert run_processes(Grid(2), apart) == [True, True]
