# mypy: disable-error-code="override, assignment"
# Of the overloads that torch declares, those with options alone are called.
"""Memory that ranks of one host share, as a back end of torch.distributed: other people's libraries take it, too.

register() names it "par4d". Every rank writes its input where the others can read it, and reads what it needs of
theirs, as in shared_memory.py. Whoever waits for an asynchronous collective carries it out; a thread does so only where
a future is asked for, as DDP's reducer does, which completes by itself. What isn't overridden here, messages between
two ranks and groups over several hosts are gloo's, which is in the group as the back end of the processor.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from engine.comm.contact import Line
from engine.comm.neighbours import MESSAGE, Neighbour, Own, host
from engine.comm.shared_memory import add_up, meet

NAME = "par4d"
BETWEEN_HOSTS = "gloo between hosts"
_OP: Any = dist.ReduceOp.RedOpType
COMBINE: dict[Any, Callable[..., Tensor]] = {
    _OP.SUM: torch.add,
    _OP.AVG: torch.add,
    _OP.MAX: torch.maximum,
    _OP.MIN: torch.minimum,
    _OP.PRODUCT: torch.mul,
}
SORTS = (
    "allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall", "gather", "scatter", "reduce", "barrier",
)  # fmt: skip


def register() -> None:
    """Make the back end known to torch.distributed, once a process."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _group, extended_api=True, devices=["cpu"])


def carried() -> Counter[str]:
    """How many calls of this process's groups of torch.distributed went through memory, over gloo or over NCCL; those
    of groups whose ranks are on several hosts, which have no memory in common, BETWEEN_HOSTS.

    Of groups of gloo and NCCL themselves it is as they number their collectives, without messages between two ranks.
    A group of one rank sends nothing. All ranks have to ask for it, as each tells the others its host.
    """
    found: Counter[str] = Counter()
    groups: Any = {group: name for group, (name, _) in dist.distributed_c10d._world.pg_map.items() if group.size() > 1}
    hosts = _hosts(dist.group.WORLD) if groups else []
    for group, name in groups.items():
        over_gloo = "gloo" if len({hosts[rank] for rank in dist.get_process_group_ranks(group)}) == 1 else BETWEEN_HOSTS
        if isinstance(group, MemoryGroup):
            found.update({over_gloo if road == "gloo" else road: calls for road, calls in group.carried.items()})
        elif name in ("gloo", "nccl"):
            found[over_gloo if name == "gloo" else name] += group._get_sequence_number_for_group()
    return +found


@lru_cache(maxsize=1)
def _hosts(_: dist.ProcessGroup | None) -> list[bytes]:
    """Of every rank of the world, asked for once, while all of them live."""
    store = dist.distributed_c10d._get_default_store()
    ranks = range(dist.get_world_size())
    store.set(f"host of {dist.get_rank()}", str(host()))
    return [store.get(f"host of {rank}") for rank in ranks]


def _group(options: Any, _: object = None) -> dist.ProcessGroup:
    """What torch.distributed calls for a new group."""
    ranks, own, timeout = options.group_size, options.group_rank, options.timeout
    gloo: Any = dist.ProcessGroupGloo(options.store, own, ranks, timeout=timeout)
    members = list(options.global_ranks_in_group or range(ranks))
    line = Line(members[own], f"in group {options.group_id}", [rank for rank in members if rank != members[own]], NAME)

    def everyones(row: Tensor) -> Tensor:
        rows = [torch.empty_like(row) for _ in range(ranks)]
        gloo.allgather([rows], [row]).wait()
        return torch.stack(rows)

    met = meet(ranks, own, line, timeout, everyones)
    return MemoryGroup(own, ranks, gloo, Exchange(*met, own, line) if met else None)


class Exchange:
    """What the ranks of a group write and read, in one order for all. Two threads may use it, one of them to wait."""

    def __init__(self, memory: Own, neighbours: Sequence[Neighbour], own: int, line: Line) -> None:
        self.own, self.ranks = own, len(neighbours) + 1
        self._memory, self._neighbours, self._line = memory, neighbours, line
        self._begun = self._done = 0
        self._beginning, self._reading = threading.Lock(), threading.Lock()
        self._waiting: deque[Exchanged] = deque()

    def begin(self, sort: int, pieces: Sequence[Tensor], read: "Callable[[Inputs], None]") -> "Exchanged":
        """Write the pieces, flat and dense, one after the other; read is called once all ranks have written theirs."""
        with self._beginning, self._line.held():
            if self._reading.acquire(blocking=False):  # else somebody who waits listens
                try:
                    for neighbour in self._neighbours:
                        neighbour.hear()
                finally:
                    self._reading.release()
            number, self._begun = self._begun, self._begun + 1
            self._memory.free(min(self._done, *(neighbour.done_with for neighbour in self._neighbours)))
            place = self._memory.take(number, max(1, sum(piece.nbytes for piece in pieces)))
            offset = place
            for piece in pieces:
                if piece.numel():
                    self._memory.view(offset, piece).copy_(piece.view(-1))
                offset += piece.nbytes
            message = MESSAGE.pack(number, self._done, place, sort)
            for neighbour in self._neighbours:
                neighbour.tell(message)
            begun = Exchanged(self, number, place, sort, read)
            self._waiting.append(begun)
        return begun

    def finish(self, last: "Exchanged") -> None:
        """Carry out those that were begun up to this one, in their order. Raises LostContact, ValueError."""
        with self._reading:
            while not last.over:
                one = self._waiting[0]
                try:
                    with self._line.held():
                        self._carry_out(one)
                except Exception as error:
                    one.error = error
                one.over = True
                self._waiting.popleft()
                self._done = one.number + 1
        if last.error is not None:
            raise last.error

    def _carry_out(self, one: "Exchanged") -> None:
        told = [neighbour.wait_for(one.number) for neighbour in self._neighbours]
        if any(sort != one.sort for _, sort in told):
            raise ValueError("A collective met another one of its group: all ranks call the same, with equal sizes.")
        places = [place for place, _ in told]
        places.insert(self.own, one.place)
        memories: list[Any] = [neighbour.memory for neighbour in self._neighbours]
        memories.insert(self.own, self._memory)
        one.read(Inputs(memories, places))


class Inputs:
    """What each rank has written."""

    def __init__(self, memories: Sequence[Any], places: Sequence[int]) -> None:
        self._memories, self._places = memories, places

    def of(self, rank: int, like: Tensor, offset: int = 0) -> Tensor:
        """As many elements from that byte on."""
        if not like.numel():
            return like
        return self._memories[rank].view(self._places[rank] + offset, like).view(like.shape)

    def every(self, like: Tensor, offset: int = 0) -> list[Tensor]:
        """The same of all ranks."""
        return [self.of(rank, like, offset) for rank in range(len(self._places))]


class Exchanged:
    """One that was begun."""

    __slots__ = ("error", "exchange", "number", "over", "place", "read", "sort")

    def __init__(self, exchange: Exchange, number: int, place: int, sort: int, read: Callable[[Inputs], None]) -> None:
        self.exchange, self.number, self.place, self.sort, self.read = exchange, number, place, sort, read
        self.over, self.error = False, None  # type: bool, Exception | None


class MemoryWork(dist.Work):
    """A collective in flight. group: whose thread completes a future. results: what the future holds."""

    def __init__(self, group: "MemoryGroup", begun: Exchanged, results: Any) -> None:
        super().__init__()
        self._group, self._begun, self._results = group, begun, results
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Carry it out here. The group's own time-out holds."""
        self._begun.exchange.finish(self._begun)
        return True

    def is_completed(self) -> bool:
        """Whether it has been carried out."""
        return self._begun.over

    def is_success(self) -> bool:
        """Whether it has been, and well."""
        return self._begun.over and self._begun.error is None

    def result(self) -> Any:
        """What the future holds."""
        self.wait()
        return self._results

    def get_future(self) -> "Future[Any]":
        """It completes without being waited for."""
        if self._future is None:
            self._future = Future()
            if self._begun.over:
                self._complete(self._future)
            else:
                self._group.later(partial(self._complete, self._future))
        return self._future

    def _complete(self, future: "Future[Any]") -> None:
        try:
            self.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self._results)


class MemoryGroup(dist.ProcessGroup):
    """A group of torch.distributed. carried: of its calls, how many went through memory and how many over gloo.

    Sums are in the order of the ranks. Raises LostContact where another rank has ended or takes too long, and
    ValueError where ranks call different things.
    """

    def __init__(self, own: int, ranks: int, gloo: dist.ProcessGroupGloo, exchange: Exchange | None):
        super().__init__(own, ranks)  # type: ignore[call-arg]
        self._plain: Any = dist.ProcessGroup(own, ranks)  # type: ignore[call-arg]
        for group in (self, self._plain):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._gloo, self._exchange, self._own, self._ranks = gloo, exchange, own, ranks
        self._orders: SimpleQueue[Callable[[], None] | None] | None = None
        self.carried = {"memory": 0, "gloo": 0}

    def later(self, complete: Callable[[], None]) -> None:
        """Have the group's thread do it."""
        if self._orders is None:
            self._orders = SimpleQueue()
            threading.Thread(target=_obey, args=(self._orders,), name=NAME, daemon=True).start()
        self._orders.put(complete)

    def shutdown(self) -> None:
        """End the thread."""
        if self._orders is not None:
            self._orders.put(None)

    def _work(
        self, sort: str, pieces: Sequence[Tensor], size: int, read: Callable[[Inputs], None], results: Any, options: Any
    ) -> dist.Work:
        """size: in bytes, equal on all ranks. One that isn't asynchronous is carried out at once."""
        assert self._exchange is not None
        self.carried["memory"] += 1
        begun = self._exchange.begin(SORTS.index(sort) + len(SORTS) * size, pieces, read)
        work = MemoryWork(self, begun, results)
        if not getattr(options, "asyncOp", True):
            work.wait()
        return work

    def _leave(self, name: str, *arguments: Any) -> dist.Work:
        self.carried["gloo"] += 1
        work: dist.Work = getattr(self._gloo, name)(*(one for one in arguments if one is not None))
        return work

    def _leave_to_op(self, name: str, *arguments: Any) -> dist.Work:
        """As _leave, where Python reaches gloo only through a group."""
        self.carried["gloo"] += 1
        work: dist.Work = getattr(self._plain, name)(*(one for one in arguments if one is not None))
        return work

    def _can(self, *tensors: Tensor, op: Any = None) -> bool:
        """Whether memory carries these: of processors, dense, and with a sum that it knows."""
        known = op is None or _kind(op) in COMBINE
        return (
            self._exchange is not None
            and known
            and all(t.device.type == "cpu" and t.layout is torch.strided and t.is_contiguous() for t in tensors)
        )

    def _reduced(self, parts: list[Tensor], op: Any, out: Tensor) -> None:
        kind = _kind(op)
        add_up(parts, COMBINE[kind], out)
        if kind == _OP.AVG:
            out.div_(self._ranks) if out.is_floating_point() else out.floor_divide_(self._ranks)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """See torch.distributed.all_reduce, as for the others by their names."""
        (one,) = tensors if not isinstance(tensors, Tensor) else (tensors,)
        if not self._can(one, op=_op(opts)):
            return self._leave("allreduce", [one], opts)
        op = _op(opts)
        return self._work(
            "allreduce", [one], one.nbytes, lambda inputs: self._reduced(inputs.every(one), op, one), [one], opts
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        if not self._can(*tensors, op=_op(opts)):
            return self._leave("allreduce_coalesced", tensors, opts)
        op = _op(opts)

        def read(inputs: Inputs) -> None:
            offset = 0
            for one in tensors:
                self._reduced(inputs.every(one, offset), op, one)
                offset += one.nbytes

        return self._work("allreduce", tensors, _bytes(tensors), read, tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (one,) = tensors
        if not self._can(one, op=_op(opts)):
            return self._leave("reduce", tensors, opts)
        op, root = opts.reduceOp, opts.rootRank

        def read(inputs: Inputs) -> None:
            if self._own == root:
                self._reduced(inputs.every(one), op, one)

        return self._work("reduce", [one], one.nbytes, read, [one], opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (one,) = tensors if not isinstance(tensors, Tensor) else (tensors,)
        if not self._can(one):
            return self._leave("broadcast", [one], opts)
        root = opts.rootRank

        def read(inputs: Inputs) -> None:
            if self._own != root:
                one.copy_(inputs.of(root, one))

        return self._work("broadcast", [one] if self._own == root else [], one.nbytes, read, [one], opts)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (targets,), (one,) = outputs, tensors
        alike = all(target.shape == one.shape for target in targets)
        if not alike or not self._can(one, *targets):
            return self._leave("allgather", outputs, tensors, opts)

        def read(inputs: Inputs) -> None:
            for rank, target in enumerate(targets):
                target.copy_(inputs.of(rank, one))

        return self._work("allgather", [one], one.nbytes, read, outputs, opts)

    def all_gather_single(self, output: Tensor, one: Tensor, opts: Any = None) -> dist.Work:
        if not self._can(one, output):
            return self._leave("_allgather_base", output, one, opts)
        return self._gather_all([output], [one], opts, output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        if not self._can(*tensors, *outputs):
            return self._leave_to_op("allgather_into_tensor_coalesced", outputs, tensors, opts)
        return self._gather_all(outputs, tensors, opts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any, results: Any) -> dist.Work:
        def read(inputs: Inputs) -> None:
            offset = 0
            for output, one in zip(outputs, tensors, strict=True):
                for rank, piece in enumerate(output.view(-1).chunk(self._ranks)):
                    piece.copy_(inputs.of(rank, one.view(-1), offset))
                offset += one.nbytes

        return self._work("allgather", tensors, _bytes(tensors), read, results, opts)

    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> dist.Work:
        (output,), (parts,) = outputs, tensors
        if not self._can(output, *parts, op=_op(opts)) or any(part.shape != output.shape for part in parts):
            return self._leave("reduce_scatter", outputs, tensors, opts)
        op, offset = _op(opts), self._own * output.nbytes
        return self._work(
            "reduce_scatter", parts, _bytes(parts),
            lambda inputs: self._reduced(inputs.every(output, offset), op, output), outputs, opts,
        )  # fmt: skip

    def reduce_scatter_single(self, output: Tensor, one: Tensor, opts: Any = None) -> dist.Work:
        if not self._can(output, one, op=_op(opts)):
            return self._leave("_reduce_scatter_base", output, one, opts)
        return self._scatter_sums([output], [one], opts, output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> dist.Work:
        if not self._can(*outputs, *tensors, op=_op(opts)):
            return self._leave_to_op("reduce_scatter_tensor_coalesced", outputs, tensors, opts)
        return self._scatter_sums(outputs, tensors, opts, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_sums(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any, results: Any) -> dist.Work:
        op = _op(opts)

        def read(inputs: Inputs) -> None:
            offset = 0
            for output, one in zip(outputs, tensors, strict=True):
                self._reduced(inputs.every(output, offset + self._own * output.nbytes), op, output)
                offset += one.nbytes

        return self._work("reduce_scatter", tensors, _bytes(tensors), read, results, opts)

    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        if self._exchange is None:
            return self._leave("alltoall", outputs, tensors, opts)
        return self._everyone_to_everyone(outputs, tensors, opts, outputs)

    def all_to_all_single(
        self, output: Tensor, one: Tensor, output_splits: list[int], input_splits: list[int],
        opts: Any = None,
    ) -> dist.Work:  # fmt: skip
        if self._exchange is None or not (output.is_contiguous() and one.is_contiguous()):
            return self._leave("alltoall_base", output, one, output_splits, input_splits, opts)
        targets = output.split(output_splits) if output_splits else output.chunk(self._ranks)
        sources = one.split(input_splits) if input_splits else one.chunk(self._ranks)
        return self._everyone_to_everyone(targets, sources, opts, output)

    alltoall_base = all_to_all_single

    def _everyone_to_everyone(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any, results: Any
    ) -> dist.Work:
        """The sizes of a rank's pieces come before them, as no other knows all of them."""
        pieces = [piece.contiguous() for piece in tensors]
        sizes = torch.tensor([piece.nbytes for piece in pieces])

        def read(inputs: Inputs) -> None:
            for rank, output in enumerate(outputs):
                theirs = inputs.of(rank, sizes).tolist()
                if theirs[self._own] != output.nbytes:
                    raise ValueError(f"Rank {rank} sends {theirs[self._own]} bytes to one that takes {output.nbytes}.")
                if output.numel():
                    output.copy_(inputs.of(rank, output, sizes.nbytes + sum(theirs[: self._own])))

        return self._work("alltoall", [sizes, *pieces], 0, read, results, opts)

    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (one,), root = tensors, opts.rootRank
        targets = outputs[0] if outputs else []
        if not self._can(one):
            return self._leave("gather", outputs, tensors, opts)

        def read(inputs: Inputs) -> None:
            for rank, target in enumerate(targets):
                target.copy_(inputs.of(rank, one))

        return self._work("gather", [one], one.nbytes + root, read, outputs, opts)

    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> dist.Work:
        (output,), root = outputs, opts.rootRank
        if not self._can(output):
            return self._leave("scatter", outputs, tensors, opts)
        pieces = [piece.contiguous() for piece in tensors[0]] if self._own == root else []

        def read(inputs: Inputs) -> None:
            output.copy_(inputs.of(root, output, self._own * output.nbytes))

        return self._work("scatter", pieces, output.nbytes, read, outputs, opts)

    def barrier(self, opts: Any = None) -> dist.Work:
        if self._exchange is None:
            return self._leave("barrier", opts)
        return self._work("barrier", [], 0, lambda _: None, [], opts)

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> dist.Work:
        """By gloo: only two ranks take part."""
        return self._leave("send", tensors, to, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> dist.Work:
        return self._leave("recv", tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        return self._leave("recv_anysource", tensors, tag)


def _obey(orders: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (order := orders.get()) is not None:
        order()


def _op(options: Any) -> Any:
    """Where a caller names none it is a sum."""
    return getattr(options, "reduceOp", _OP.SUM)


def _kind(op: Any) -> Any:
    """Which of COMBINE, if it is one. A ReduceOp is hashed by its object, not by its kind."""
    state: Any = op.__getstate__() if isinstance(op, dist.ReduceOp) else (op,)
    return state[0]


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)
