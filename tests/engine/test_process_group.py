"""The shared memory of ranks as a back end of torch.distributed: each collective against gloo, and trainings by it."""

import copy
import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from real_ranks import run_processes
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from waiting import LONG_S

from engine.comm import process_group
from engine.comm.funnel import Comm
from engine.comm.memory_collectives import MemoryGroup
from engine.comm.process_group import NAME, carried, register
from engine.errors import ContactError
from engine.grid import Grid
from engine.result.peers import UNEQUAL, Measured, Side, is_equal, road

SIZES = (1, 3, 4099)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64)


def _group(ranks: list[int] | None = None) -> MemoryGroup:
    register()
    group = dist.new_group(ranks, backend=NAME, timeout=timedelta(seconds=LONG_S), use_local_synchronization=True)
    assert isinstance(group, MemoryGroup)
    return group


def _each(group: dist.ProcessGroup, count: int, dtype: torch.dtype) -> list[Tensor]:
    """What every collective leaves on this rank, of small whole numbers, whose sums every type holds."""
    ranks, own = group.size(), group.rank()
    one, whole = ((torch.arange(n) % 5 + own + 1).to(dtype) for n in (count, count * ranks))
    out: list[Tensor] = []

    def given(*tensors: Tensor) -> None:
        out.extend(tensor.clone() for tensor in tensors)

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        dist.all_reduce(summed := one.clone(), op=op, group=group)
        given(summed)
    dist.broadcast(sent := one.clone(), group_src=ranks - 1, group=group)
    dist.reduce(root := one.clone(), group_dst=0, group=group)
    given(sent, *([root] if own == 0 else []))
    parts = [torch.empty_like(one) for _ in range(ranks)]
    dist.all_gather(parts, one, group=group)
    given(*parts)
    dist.all_gather_into_tensor(gathered := torch.empty_like(whole), one, group=group)
    dist.reduce_scatter_tensor(share := torch.empty_like(one), whole, group=group)
    given(gathered, share)
    dist.reduce_scatter(share := torch.empty_like(one), list(whole.chunk(ranks)), group=group)
    dist.all_to_all_single(turned := torch.empty_like(whole), whole, group=group)
    given(share, turned)
    splits = [(own + to) % 3 for to in range(ranks)]
    uneven = torch.arange(sum(splits)).to(dtype)
    dist.all_to_all_single(turned := torch.empty_like(uneven), uneven, splits, splits, group=group)
    given(turned)
    dist.gather(one, parts if own == 0 else None, group_dst=0, group=group)
    dist.scatter(share, list(whole.chunk(ranks)) if own == 0 else None, group_src=0, group=group)
    given(share, *(parts if own == 0 else []))
    objects: list[object] = [None] * ranks
    dist.all_gather_object(objects, {"rank": own}, group=group)
    assert objects == [{"rank": rank} for rank in range(ranks)]
    if ranks == 2:
        to: dict[str, Any] = {"group": group, "group_peer": 1 - own}
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, **to), dist.P2POp(dist.irecv, share, **to)]):
            work.wait()
        given(share)
    dist.barrier(group=group)
    return out


def _as_gloo(comm: Comm) -> int:
    group, gloo, wrong = _group(), dist.group.WORLD, 0
    assert gloo is not None
    for count, dtype in product(SIZES, DTYPES):
        pairs = zip(_each(group, count, dtype), _each(gloo, count, dtype), strict=True)
        wrong += sum(not torch.equal(ours, theirs) for ours, theirs in pairs)
    assert group.carried["memory"] > 100
    return wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_collective_leaves_what_gloos_does(ranks: int) -> None:
    assert run_processes(Grid(ranks), _as_gloo) == [0] * ranks


def _averages(comm: Comm) -> list[float]:
    dist.all_reduce(mean := torch.tensor([1.0 + comm.rank]), op=dist.ReduceOp.AVG, group=_group())
    return mean.tolist()


def test_an_average_is_known_which_gloo_may_not_know() -> None:
    assert run_processes(Grid(3), _averages) == [[2.0]] * 3


def _overlapping(comm: Comm) -> bool:
    """Many at once, of two groups that the ranks wait for in different orders; some by their futures."""
    groups = [_group(), _group()]
    tensors = [torch.full((5000,), float(number + comm.rank)) for number in range(20)]
    works = [dist.all_reduce(one, group=groups[number % 2], async_op=True) for number, one in enumerate(tensors)]
    futures = [work.get_future() for work in works[::3]]
    for work in works[:: 1 - 2 * (comm.rank % 2)]:
        work.wait()
    for future in futures:
        future.wait()
    ranks = comm.grid.size
    sums = [number * ranks + sum(range(ranks)) for number in range(20)]
    return all(one.eq(total).all().item() for one, total in zip(tensors, sums, strict=True))


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_in_flight_may_be_waited_for_in_any_order(ranks: int) -> None:
    assert run_processes(Grid(ranks), _overlapping) == [True] * ranks


def _subgroups(comm: Comm) -> list[float]:
    half = [rank for rank in range(4) if rank % 2 == comm.rank % 2]
    dist.all_reduce(one := torch.tensor([float(comm.rank)]), group=_group(half))
    return one.tolist()


def test_groups_of_some_ranks_sum_among_themselves() -> None:
    assert run_processes(Grid(4), _subgroups) == [[2.0], [4.0], [2.0], [4.0]]


def _by_host(comm: Comm) -> dict[str, int]:
    """Four ranks, of which two and two say that they are on a host."""
    pair = _group([rank for rank in range(4) if rank // 2 == comm.rank // 2])
    usual = process_group.host
    process_group.host = lambda: comm.rank // 2
    process_group._hosts.cache_clear()
    try:
        before = carried()
        for group in (pair, dist.group.WORLD):
            dist.all_reduce(torch.ones(1), group=group)
        return dict(carried() - before)
    finally:
        process_group.host = usual
        process_group._hosts.cache_clear()


def test_calls_between_hosts_are_told_from_those_within_one() -> None:
    assert run_processes(Grid(4), _by_host) == [{"memory": 1, process_group.BETWEEN_HOSTS: 1}] * 4


@pytest.mark.parametrize(
    ("ours", "peer", "told"),
    [
        (("memory",), ("memory",), "memory"),
        (("gloo",), ("gloo",), "gloo"),
        (("memory",), ("gloo",), UNEQUAL),
        (("memory",), ("memory", "gloo"), UNEQUAL),
        (("memory", "gloo"), ("memory", "gloo"), UNEQUAL),
        ((process_group.BETWEEN_HOSTS,), ("memory", process_group.BETWEEN_HOSTS), "gloo between hosts and memory"),
        ((process_group.BETWEEN_HOSTS, "gloo"), ("memory", process_group.BETWEEN_HOSTS), UNEQUAL),
        ((), (), ""),
    ],
)
def test_roads_are_equal_where_calls_within_a_host_all_took_one(
    ours: tuple[str, ...], peer: tuple[str, ...], told: str
) -> None:
    sides = [Side(losses=(), wall_s=(), cpu_s=(), carried=dict.fromkeys(names, 3)) for names in (ours, peer)]
    assert road([Measured(ours=sides[0], peer=sides[1])], 4) == told
    assert is_equal(told) == (told not in (UNEQUAL, ""))


def _without_memory(comm: Comm) -> dict[str, int]:
    group = _group()
    dist.all_reduce(torch.ones(3), group=group)
    return group.carried


def test_ranks_that_share_no_memory_leave_all_to_gloo_and_say_so() -> None:
    assert run_processes(Grid(2), _without_memory, shared=False) == [{"memory": 0, "gloo": 1}] * 2


def _coalesced(comm: Comm) -> list[bool]:
    """By the names of torch.distributed's own manager, and by those of functional collectives."""
    group, ranks, right = _group(), comm.grid.size, []
    ones = [torch.full((count,), float(count + comm.rank)) for count in (1, 3, 5)]
    wholes = [torch.cat([one] * ranks) for one in ones]
    gathered = [torch.cat([one - comm.rank + rank for rank in range(ranks)]) for one in ones]
    summed = [ranks * (one - comm.rank) + sum(range(ranks)) for one in ones]

    def same(left: Sequence[Tensor], then: Sequence[Tensor]) -> None:
        right.append(all(torch.equal(*pair) for pair in zip(left, then, strict=True)))

    outputs = [torch.empty_like(whole) for whole in wholes]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for output, one in zip(outputs, ones, strict=True):
            dist.all_gather_into_tensor(output, one, group=group)
    manager.wait()
    same(outputs, gathered)
    same(functional.all_gather_into_tensor_coalesced(ones, group), gathered)
    same(functional.reduce_scatter_tensor_coalesced(wholes, "sum", [0] * len(wholes), group), summed)
    return right


@pytest.mark.parametrize("shared", [True, False])
def test_several_collectives_in_one_call_go_through_memory_or_by_gloo(shared: bool) -> None:
    assert run_processes(Grid(2), _coalesced, shared=shared) == [[True] * 3] * 2


def _different(comm: Comm) -> str:
    with pytest.raises(ValueError, match="A collective met another one of its group"):
        dist.all_reduce(torch.ones(5 + comm.rank), group=_group())
    return "told"


def test_collectives_that_do_not_belong_together_are_told() -> None:
    assert run_processes(Grid(2), _different) == ["told"] * 2


def _silent(comm: Comm, asks: str) -> str:
    group = _group()
    assert group._exchange is not None
    for neighbour in group._exchange._neighbours:
        assert neighbour._timeout_s == LONG_S, "the group's"
        neighbour._timeout_s = 0.5  # now that they have met
    told = ""
    if comm.rank == 0:
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        try:
            work.wait() if asks == "wait" else work.get_future().wait()
        except (ContactError, RuntimeError) as error:
            told = str(error)
    dist.barrier()
    return told


@pytest.mark.parametrize("asks", ["wait", "future"])
def test_a_rank_that_takes_no_part_is_told_when_time_runs_out(asks: str) -> None:
    told, _ = run_processes(Grid(2), _silent, asks)
    assert "no answer within 0.5 s" in told


def _killed(comm: Comm, folder: Path, asks: str) -> None:
    """The last rank is killed while the others wait for it."""
    group = _group()
    if comm.rank == comm.grid.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
    try:
        work.wait() if asks == "wait" else work.get_future().wait()
    except (ContactError, RuntimeError) as error:
        (folder / str(comm.rank)).write_text(str(error))
    os._exit(0)  # nobody answers any more


@pytest.mark.parametrize("asks", ["wait", "future"])
def test_a_rank_that_is_killed_while_the_others_wait_is_missed_by_them_at_once(tmp_path: Path, asks: str) -> None:
    with pytest.raises(AssertionError, match="it died"):
        run_processes(Grid(3), _killed, tmp_path, asks)
    for rank in range(2):
        assert "the other end is closed" in (tmp_path / str(rank)).read_text()


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)).double()


def _ddp(network: nn.Module) -> nn.Module:
    return DistributedDataParallel(network, process_group=_group(), gradient_as_bucket_view=True, bucket_cap_mb=1)


def _fsdp2(network: nn.Module) -> nn.Module:
    fully_shard(network, mesh=DeviceMesh.from_group(_group(), "cpu"))
    return network


def _trained(comm: Comm, wrap: Callable[[nn.Module], nn.Module]) -> list[float]:
    """The most that a loss is off the serial model's, in each of five steps."""
    serial = _network()
    network = wrap(copy.deepcopy(serial))
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.05) for one in (serial, network)]
    off = []
    for step in range(5):
        batch = torch.randn(4 * comm.grid.size, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        whole, mine = serial(batch).square().mean(), network(batch.chunk(comm.grid.size)[comm.rank]).square().mean()
        for loss, optimizer in zip((whole, mine), optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = mine.detach().clone()
        dist.all_reduce(mean)
        off.append(abs(mean.item() / comm.grid.size / whole.item() - 1))
    return off


@pytest.mark.parametrize("wrap", [_ddp, _fsdp2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_others_train_over_it_as_one_rank_does(wrap, ranks: int) -> None:  # type: ignore[no-untyped-def]
    assert all(max(off) < 1e-12 for off in run_processes(Grid(ranks), _trained, wrap))
