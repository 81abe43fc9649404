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
from engine.comm.funnel import Comm
from engine.comm.gloo import GlooChannel
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
