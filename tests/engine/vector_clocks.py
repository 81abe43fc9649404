"""CUDA's streams and events played on the CPU: real training steps, and a proof that their order is enough.

A stream has a vector clock: for each stream, how much of its work comes before what this one is given next. Every
operation that PyTorch runs notes which bytes it reads and writes, at its stream's time. Two accesses to the same bytes,
one of them a write, must be ordered by the clocks, and so must all that lanes do to a storage and the moment at which
its memory may be given out again. A collective also "writes" its process group: a communicator has to see one order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.comm.backend import Channel, launch
from engine.comm.collective import OF_MESSAGES, Kind, Lane
from engine.comm.contact import Route
from engine.comm.nccl import CudaStreams, NcclChannel
from engine.grid import Axis
from engine.measure.pending import Pending

Event = Counter[str]


@dataclass(eq=False)
class Stream:
    name: str
    heeds: Callable[[str], bool]
    clock: Counter[str] = field(default_factory=Counter)

    def record_event(self) -> Event:
        return self.clock.copy()

    def wait_event(self, event: Event) -> None:
        self._wait(f"{self.name} for an event", event)

    def wait_stream(self, stream: "Stream") -> None:
        self._wait(f"{self.name} for {stream.name}", stream.clock)

    def _wait(self, what: str, event: Event) -> None:
        if self.heeds(what):
            self.clock |= event  # the later of each


class Streams(CudaStreams):
    """CUDA's streams, played. missed: one wait that is left out, as (which waits, number).

    waits: number of each sort, such as "lane 1 for computing".
    """

    def __init__(self, missed: tuple[str, int] | None = None) -> None:
        self.waits: Counter[str] = Counter()
        self._missed, self._lanes = missed, 0
        self.computing = self._current = Stream("computing", self._heeds)

    def _heeds(self, wait: str) -> bool:
        self.waits[wait] += 1
        return (wait, self.waits[wait]) != self._missed

    def lane(self) -> Stream:  # type: ignore[override]
        self._lanes += 1
        return Stream(f"lane {self._lanes}", self._heeds)

    def current(self) -> Stream:  # type: ignore[override]
        return self._current

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:  # type: ignore[override]
        before, self._current = self._current, stream
        yield
        self._current = before


@dataclass
class NcclOnStreams:
    """NCCL's channels over fake process groups."""

    streams: Streams
    rank: int

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        if lane in OF_MESSAGES:
            return Messages(members, self.streams)
        return NcclChannel(_group(members), self.streams, Route(self.rank, f"on axis {axis}", members, "nccl"))


def _group(members: Sequence[int]) -> dist.ProcessGroup:
    group = dist.new_group(list(members), use_local_synchronization=True)
    assert group is not None
    return group


class Messages:
    """Messages in a group of NCCL (NcclMessages): each pair has a communicator and a stream, which waits for the
    computing stream when a message is begun, and for which that waits.
    """

    def __init__(self, members: Sequence[int], streams: Streams) -> None:
        self._streams = streams
        self._pairs = [(_group(members), streams.lane()) for _ in members]

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        assert peer is not None
        (group, lane), streams = self._pairs[peer], self._streams
        lane.wait_stream(streams.computing)
        with streams.use(lane):
            launch(kind, group, source, target, peer, async_op=True)
            done = lane.record_event()
        return lambda: streams.current().wait_event(done)


Place = tuple[str, int, int, bool]
"""Stream, first and last byte, and whether it is written."""


@dataclass
class _Storage:
    """Last time of each access of a storage. alive: None for what is never freed."""

    alive: StorageWeakRef | None
    accesses: dict[Place, int] = field(default_factory=dict)


class RaceDetector(TorchDispatchMode):
    """Recorder of every operation in here. races: what was not ordered, one sentence each."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self.races: list[str] = []
        self._streams = streams
        self._storages: dict[object, _Storage] = {}
        self._at_lanes: dict[object, _Storage] = {}
        """Storages that lanes have touched since the computing stream last waited for them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.check_freed()
        result = func(*args, **(kwargs or {}))
        stream = self._streams.current()
        stream.clock[stream.name] += 1
        reads, writes = _collective(func, args) or _operation(func, args, kwargs or {}, result)
        for tensor in reads:
            self._access(str(func), tensor, write=False)
        for tensor in writes:
            self._access(str(func), tensor, write=True)
        if func.namespace == "c10d":
            boxed = next(arg for arg in args if isinstance(arg, torch.ScriptObject))
            group = dist.ProcessGroup.unbox(boxed).group_name
            self._note(str(func), self._storages.setdefault(group, _Storage(None)), 0, 0, write=True)
        return result

    def check_freed(self) -> None:
        """Check that the computing stream comes after all that lanes did to what is freed, and may be given out
        again.
        """
        clock = self._streams.computing.clock
        for key, storage in list(self._at_lanes.items()):
            late = [place for place, time in storage.accesses.items() if clock[place[0]] < time]
            assert storage.alive is not None
            if late and storage.alive.expired():
                self.races.append(f"memory is freed while {late[0][0]} may be at it")
            if not late or storage.alive.expired():
                del self._at_lanes[key]

    def _access(self, name: str, tensor: Tensor, *, write: bool) -> None:
        if tensor.numel() == 0:
            return
        key = tensor.untyped_storage()._cdata
        if key not in self._storages:
            self._storages[key] = _Storage(StorageWeakRef(tensor.untyped_storage()))
        first = tensor.storage_offset() * tensor.itemsize
        extent = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        self._note(name, self._storages[key], first, first + extent * tensor.itemsize, write=write)
        if self._streams.current() is not self._streams.computing:
            self._at_lanes[key] = self._storages[key]

    def _note(self, name: str, storage: _Storage, first: int, last: int, *, write: bool) -> None:
        stream = self._streams.current()
        for (other, start, end, written), time in storage.accesses.items():
            if (write or written) and start <= last and first <= end and stream.clock[other] < time:
                self.races.append(f"{name} on {stream.name} is not after what {other} does to the same bytes")
        storage.accesses[stream.name, first, last, write] = stream.clock[stream.name]


def _collective(func: Any, args: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return what a collective reads and writes, which its schema doesn't say."""
    if func.namespace != "c10d":
        return None
    match func._opname:
        case "_allgather_base_" | "_reduce_scatter_base_":
            return [args[1]], [args[0]]
        case "allreduce_" | "recv_":
            return [], list(args[0])
        case "send":
            return list(args[0]), []
    raise AssertionError(f"what does {func} read and write?")


def _operation(func: Any, args: Sequence[Any], kwargs: dict[str, Any], made: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return what another operation reads and writes; a view does neither."""
    if func.is_view:
        return [], []
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    for number, argument in enumerate(func._schema.arguments):
        given = args[number] if number < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if written else reads).extend(leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
    known = {tensor.untyped_storage()._cdata for tensor in reads + writes}
    new = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
    return reads, writes + [tensor for tensor in new if tensor.untyped_storage()._cdata not in known]
