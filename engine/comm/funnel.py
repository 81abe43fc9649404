"""Comm: the live process groups of a grid, and the only module of the engine that issues collectives.

Everything goes through one funnel, Comm.issue, which checks sizes and dtypes (meta and fake back ends accept wrong
ones silently), tells the recorder, and returns a handle that is waited for exactly once.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from engine.grid import Axis, Grid
from engine.measure.recorder import Flight, Recorder

DEFAULT_TIMEOUT = timedelta(minutes=10)

# Renamed in torch 2.13; clusters run older ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Kind(StrEnum):
    """The collectives of Algorithm 1 (axonn-sc24). MAX_REDUCE is the all-reduce of a softmax's maximum."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    MAX_REDUCE = "max_reduce"


class Lane(StrEnum):
    """What a collective is for: a small gather that is needed soon mustn't wait behind reductions that are in no hurry.

    Each axis and lane is a process group and a CUDA stream of its own. NCCL runs those of one lane in their order,
    gloo two at a time.
    """

    MAIN = "main"
    GATHER = "gather"


LANES = {Axis.Z: tuple(Lane)}
"""Where an axis has more lanes than MAIN."""


class Handle:
    """A collective in flight. Owns its buffers until wait(), which is called exactly once.

    in_flight: where it is noted until then. flight: what a recorder has of it.
    """

    def __init__(
        self,
        finish: Callable[[], Tensor],
        in_flight: "dict[Handle, None] | None" = None,
        flight: Flight | None = None,
    ) -> None:
        self._finish: Callable[[], Tensor] | None = finish
        self._in_flight, self._flight = in_flight, flight
        if in_flight is not None:
            in_flight[self] = None

    def wait(self, *, at_last: bool = False) -> Tensor:
        """Block the stream that computes until the result is there, and return it.

        at_last: it was issued as early, and is waited for as late, as what depends on what allows.
        """
        if self._finish is None:
            raise RuntimeError("A collective's handle was waited for twice.")
        if at_last and self._flight is not None:
            self._flight.blocking = True
        if self._in_flight is not None:
            del self._in_flight[self]
        finish, self._finish = self._finish, None
        return finish()


class Comm:
    """This rank's process groups, one an axis and lane; an axis of size 1 has none and costs nothing.

    Needs an initialised default process group of grid.size ranks, of any back end.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        recorder: Recorder | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.grid = grid
        self.device = torch.device(device)
        self.recorder = recorder
        self._in_flight: dict[Handle, None] = {}
        self.rank = self._connect(timeout)
        self.coords = grid.coords(self.rank)

    def _connect(self, timeout: timedelta) -> int:
        """Make this rank's own groups; returns its rank."""
        if not dist.is_initialized():
            if self.grid.size > 1:
                raise RuntimeError("Comm needs an initialised process group for a grid of more than one rank.")
            return 0
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size != self.grid.size:
            raise RuntimeError(f"Grid {self.grid} has {self.grid.size} ranks, the process group {world_size}.")
        self._groups: dict[tuple[Axis, Lane], dist.ProcessGroup] = {}
        self._streams: dict[tuple[Axis, Lane], torch.cuda.Stream] = {}
        # Every rank makes only its own groups. A new group takes its back end's default time-out, not the parent's.
        for axis in [axis for axis in Axis if self.grid[axis] > 1]:
            members = list(self.grid.members(axis, rank))
            for lane in LANES.get(axis, (Lane.MAIN,)):
                group = dist.new_group(members, timeout=timeout, use_local_synchronization=True)
                assert group is not None
                self._groups[axis, lane] = group
                if self.device.type == "cuda":
                    self._streams[axis, lane] = torch.cuda.Stream(self.device)
        return rank

    def issue(
        self, kind: Kind, axis: Axis, tensor: Tensor, *, lane: Lane = Lane.MAIN, out: Tensor | None = None
    ) -> Handle:
        """Start a collective along an axis; other work may be done until its handle is waited for.

        ALL_GATHER: [n] -> [G * n]. REDUCE_SCATTER: [G * n] -> [n], summed. ALL_REDUCE and MAX_REDUCE: in place, so the
        caller must own the buffer. out, for the first two, is where the result goes. On an axis of size 1 the result
        is the input (copied into out if there is one).
        """
        return self._issue(kind, axis, lane, tensor, out, blocking=False)

    def run(self, kind: Kind, axis: Axis, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The same where the very next operation needs the result: issue and wait."""
        return self._issue(kind, axis, Lane.MAIN, tensor, out, blocking=True).wait()

    def _issue(
        self, kind: Kind, axis: Axis, lane: Lane, tensor: Tensor, out: Tensor | None, *, blocking: bool
    ) -> Handle:
        size = self.grid[axis]
        if size == 1:
            if out is not None and out is not tensor:
                out.copy_(tensor)
            return Handle(lambda: tensor if out is None else out)
        result = self._checked_output(kind, size, tensor, out)
        if self.recorder is None:
            return Handle(self._start(kind, axis, lane, tensor, result, None), self._in_flight)
        place = axis.value if lane is Lane.MAIN else f"{axis} {lane}"
        num_bytes = tensor.numel() * tensor.element_size()
        flight = self.recorder.issued(kind, axis, place, num_bytes, blocking=blocking)
        finish = self._start(kind, axis, lane, tensor, result, flight)

        def finish_and_record() -> Tensor:
            flight.waited = flight.issued if blocking else flight.clock.stamp()
            output = finish()
            flight.resume()
            return output

        return Handle(finish_and_record, self._in_flight, flight)

    def abandon(self) -> None:
        """After an exception: wait for all that is in flight, in the order in which it was issued.

        What the other ranks never answer is given up when the back end says so.
        """
        while self._in_flight:
            with suppress(RuntimeError):  # the base of torch.distributed's errors
                next(iter(self._in_flight)).wait()

    def barrier(self) -> None:
        """Wait until every rank of the grid has come here."""
        token = torch.zeros(1, device=self.device)
        for axis in Axis:
            self.run(Kind.ALL_REDUCE, axis, token)
        token.item()

    def everyone(self, row: Tensor) -> Tensor:
        """A small row [n] of every rank, stacked in rank order: [ranks, n]."""
        rows = row.to(self.device)
        for axis in Axis:
            rows = self.run(Kind.ALL_GATHER, axis, rows)
        return rows.view(self.grid.size, -1)

    def _checked_output(self, kind: Kind, size: int, tensor: Tensor, out: Tensor | None) -> Tensor:
        """The buffer that a collective fills, after the checks that no back end can be trusted with."""
        if not tensor.is_contiguous() or tensor.numel() == 0:
            raise ValueError(f"{kind} needs a contiguous buffer that is not empty, got {tuple(tensor.shape)}.")
        if kind in (Kind.ALL_REDUCE, Kind.MAX_REDUCE):
            if out is not None:
                raise ValueError(f"{kind} is in place and takes no other buffer.")
            return tensor
        if kind is Kind.ALL_GATHER:
            expected = tensor.numel() * size
        else:
            if tensor.numel() % size:
                raise ValueError(f"{kind} over {size} ranks can't split {tensor.numel()} elements evenly.")
            expected = tensor.numel() // size
        result = tensor.new_empty(expected) if out is None else out
        if result.numel() != expected or result.dtype != tensor.dtype or not result.is_contiguous():
            raise ValueError(
                f"{kind} of {tensor.numel()} {tensor.dtype} over {size} ranks fills {expected} contiguous elements, "
                f"got a buffer of {result.numel()} {result.dtype}."
            )
        return result

    def _start(
        self, kind: Kind, axis: Axis, lane: Lane, tensor: Tensor, result: Tensor, flight: Flight | None
    ) -> Callable[[], Tensor]:
        """Hand a checked collective to torch.distributed; returns what waits for it. flight: told when it is done."""
        group = self._groups[axis, lane]
        source, target = tensor.detach().view(-1), result.detach().view(-1)
        if self.device.type == "cuda":
            return self._start_on_stream(kind, self._streams[axis, lane], group, source, target, result, flight)
        if kind is Kind.REDUCE_SCATTER:
            # gloo's own sends as much as an all-reduce; an exchange and a local sum send half.
            parts = torch.empty_like(source)
            work = dist.all_to_all_single(parts, source, group=group, async_op=True)
        else:
            parts = target
            work = _launch(kind, group, source, target, async_op=True)
        assert work is not None
        if flight is not None:
            work.get_future().add_done_callback(lambda _: flight.end())

        def finish() -> Tensor:
            work.wait()
            if flight is not None:
                flight.resume()  # the sum that may follow is this rank's own work
            if parts is not target:
                torch.sum(parts.view(dist.get_world_size(group), -1), dim=0, out=target)
            return result

        return finish

    def _start_on_stream(
        self,
        kind: Kind,
        stream: torch.cuda.Stream,
        group: dist.ProcessGroup,
        source: Tensor,
        target: Tensor,
        result: Tensor,
        flight: Flight | None,
    ) -> Callable[[], Tensor]:
        """On the lane's own stream, after what the present stream has done so far; the host never waits.

        What it returns keeps both buffers until the stream that computes waits for the lane: the allocator can't hand
        their memory to anybody before.
        """
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            if flight is not None:
                flight.begin()
            _launch(kind, group, source, target, async_op=False)  # the lane's stream waits, not the host
            if flight is not None:
                flight.end()
            done = torch.cuda.Event()
            done.record()
        return partial(_join, done, result, (source, target))


def _join(done: torch.cuda.Event, result: Tensor, buffers: tuple[Tensor, Tensor]) -> Tensor:
    """Let the present stream wait; only now may the buffers go back to the allocator."""
    torch.cuda.current_stream(result.device).wait_event(done)
    return result


def _launch(
    kind: Kind, group: dist.ProcessGroup, source: Tensor, target: Tensor, *, async_op: bool
) -> dist.Work | None:
    if kind is Kind.ALL_GATHER:
        return _all_gather(target, source, group=group, async_op=async_op)
    if kind is Kind.REDUCE_SCATTER:
        return _reduce_scatter(target, source, group=group, async_op=async_op)
    op = dist.ReduceOp.SUM if kind is Kind.ALL_REDUCE else dist.ReduceOp.MAX
    return dist.all_reduce(target, op=op, group=group, async_op=async_op)
