"""Comm: the live process groups of a grid, and the only place of the engine that issues collectives.

Everything goes through one funnel, Comm.issue, which checks sizes and dtypes (meta and fake back ends accept wrong ones
silently), tells the recorder, and returns a handle that is waited for exactly once.
"""

import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
from torch import Tensor

from engine.comm.backend import Channel, ChannelSource, Handle, Outstanding
from engine.comm.collective import IN_PLACE, LANES, POINT_TO_POINT, ROOTED, Kind, Lane, lane_name
from engine.comm.contact import LostContact, Route
from engine.comm.groups import ProcessGroups
from engine.errors import ContactError
from engine.grid import Axis, Grid
from engine.measure.memory import free_host_bytes
from engine.measure.recorder import Recorder

SOON_S, POLL_S = 2e-5, 5e-4
"""First and last pause of polling for messages, where a back end doesn't notify."""
DEFAULT_TIMEOUT = timedelta(minutes=10)


class Comm:
    """Place of this rank on the grid and its channels, one an axis and lane; an axis of size 1 has none."""

    def __init__(
        self,
        grid: Grid,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        recorder: Recorder | None = None,
        device: torch.device | str = "cpu",
        backend: ChannelSource | None = None,
        outstanding: Outstanding | None = None,
    ) -> None:
        """Make the channels: of torch.distributed's default group of grid.size ranks, unless a backend is given.

        outstanding: that of another Comm of this rank, whose watcher then watches this one, too.
        """
        self.grid, self.timeout = grid, timeout
        self.device = torch.device(device)
        self.recorder = recorder
        backend = backend or ProcessGroups(grid, self.device, timeout)
        self.rank = backend.rank
        self.coords = grid.coords(self.rank)
        self.outstanding = outstanding or Outstanding()
        self._channels: dict[tuple[Axis, Lane], Channel] = {
            (axis, lane): backend.channel(axis, lane, grid.members(axis, self.rank))
            for axis in Axis
            if grid[axis] > 1
            for lane in LANES.get(axis, (Lane.MAIN,))
        }

    def issue(
        self,
        kind: Kind,
        axis: Axis,
        tensor: Tensor,
        *,
        lane: Lane = Lane.MAIN,
        out: Tensor | None = None,
        peer: int | None = None,
        root: int | None = None,
        at_once: bool = False,
        unavoidable: bool = False,
    ) -> Handle:
        """Start a collective along an axis; other work may be done until its handle is waited for.

        ALL_GATHER: [n] -> [G * n]. REDUCE_SCATTER: [G * n] -> [n], summed. ALL_REDUCE and MAX_REDUCE: in place, so the
        caller must own the buffer. out, for the first two, is where the result goes. On an axis of size 1 the result is
        the input (copied into out if there is one).

        SEND: tensor goes to the rank whose coordinate on the axis is peer. RECV: tensor is filled with what that rank
        sends; sizes and dtypes agree. Messages of two ranks one way arrive in their order.

        BROADCAST: the rank whose coordinate on the axis is root fills the others' tensors with its own, which it may
        read meanwhile. REDUCE: in place; the root's is the sum, and the others' are to be thrown away.

        at_once: it is waited for before anything else is done, so that on CUDA it needs no stream of its own.
        unavoidable: as in Handle.wait.

        Raises ValueError for a buffer, a peer or a root that doesn't fit, and here or in wait() LostContact.
        """
        size = self.grid[axis]
        self._check_others(kind, axis, peer, root)
        if size == 1:
            return Handle(tensor if out is None else out.copy_(tensor))
        result = _checked_output(kind, size, tensor, out)
        outstanding, call = self.outstanding, (kind, axis, lane)
        outstanding.unconfirmed = call
        outstanding.moves += 1
        pending = None
        if self.recorder is not None:
            num_bytes = tensor.numel() * tensor.element_size()
            pending = self.recorder.issued(
                kind, axis, lane_name(axis, lane), num_bytes, blocking=unavoidable, at_once=at_once
            )
        source, target = tensor.detach().view(-1), result.detach().view(-1)
        if kind is Kind.BROADCAST and root == self.coords[axis]:
            source = target = tensor.data.view(-1)  # which autograd may keep, as nothing changes it
        other = peer if root is None else root
        finish = self._channels[axis, lane].start(kind, source, target, other, pending, blocking=at_once)
        return Handle(result, tensor, finish, call, outstanding, pending)

    def wait_any(self, handles: Sequence[Handle]) -> None:
        """Wait until one of these messages has arrived. Raises LostContact after the time-out."""
        arrival, outstanding, limit_s = threading.Event(), self.outstanding, self.timeout.total_seconds()
        notified = [handle.watch(arrival.set) for handle in handles]
        began, deadline = [handle.stamp() for handle in handles], time.monotonic() + limit_s
        outstanding.awaited = outstanding.in_flight[handles[0]]
        pause_s = SOON_S
        while not any(handle.arrived() for handle in handles):
            if time.monotonic() > deadline:
                members = self.grid.members(outstanding.awaited[1], self.rank)
                route = Route(self.rank, "in the pipeline", members, "its own watch")
                raise LostContact(route, TimeoutError(f"no message came within {limit_s:g} s"))
            self._pause(arrival, limit_s if all(notified) else pause_s)
            pause_s = min(POLL_S, 1.5 * pause_s)
        outstanding.awaited = None
        outstanding.moves += 1
        for handle, since in zip(handles, began, strict=True):
            if handle.arrived():
                handle.waited_since(since)
                break

    def _pause(self, arrival: threading.Event, seconds: float) -> None:
        """Wait between two polls; ranks that are threads of a test give way to one another here."""
        arrival.wait(seconds)
        arrival.clear()

    def run(self, kind: Kind, axis: Axis, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Issue and wait, where the very next operation needs the result."""
        return self.issue(kind, axis, tensor, out=out, at_once=True, unavoidable=True).wait()

    def sum(self, tensor: Tensor, axes: Iterable[Axis] = Axis) -> Tensor:
        """Sum over all ranks of these axes, in place, where the very next operation needs the result."""
        for axis in axes:
            self.run(Kind.ALL_REDUCE, axis, tensor)
        return tensor

    def abandon(self) -> None:
        """Wait for all that is in flight after an exception, in the order of issue, each at most until its time-out."""
        in_flight = self.outstanding.in_flight
        while in_flight:
            with suppress(ContactError, RuntimeError):  # the base of torch.distributed's errors
                next(iter(in_flight)).wait()

    def barrier(self) -> None:
        """Wait until every rank of the grid has come here."""
        token = torch.zeros(1, device=self.device)
        self.sum(token)
        token.item()  # on CUDA the host goes on otherwise
        self.outstanding.mark_synchronised()

    def gather_rows(self, row: Tensor) -> Tensor:
        """Gather a small row [n] from every rank, for the host: [ranks, n], in rank order."""
        rows = row.to(self.device)
        for axis in self.grid.order:
            rows = self.run(Kind.ALL_GATHER, axis, rows)
        if not rows.is_meta:
            rows = rows.cpu()
            self.outstanding.mark_synchronised()
        return rows.view(self.grid.size, -1)

    def unanimous(self, flag: bool) -> bool:
        """Return whether the flag is set on every rank. Collective."""
        return bool(self.gather_rows(torch.tensor([flag])).all())

    def ranks_sharing_memory(self) -> int:
        """Count the ranks that compute in this rank's memory: those on its host, or itself on a GPU. Collective."""
        owner = _host() if self.device.type == "cpu" else self.rank
        return int(self.gather_rows(torch.tensor([owner])).eq(owner).sum().item())

    def tightest_host(self) -> tuple[int, int]:
        """Return the free bytes and the ranks of the host that has the fewest bytes for each of its ranks.
        Collective.
        """
        hosts, free = self.gather_rows(torch.tensor([_host(), free_host_bytes()])).t().tolist()
        ranks = Counter(hosts)
        left, host = min(zip(free, hosts, strict=True), key=lambda pair: pair[0] / ranks[pair[1]])
        return left, ranks[host]

    def _check_others(self, kind: Kind, axis: Axis, peer: int | None, root: int | None) -> None:
        size = self.grid[axis]
        if root is None if kind in ROOTED else root is not None:
            raise ValueError(f"{kind} {'names its root' if kind in ROOTED else 'has no root'}, got {root}.")
        if root is not None and not 0 <= root < size:
            raise ValueError(f"{kind} names as root a coordinate on {axis}, from 0 to {size - 1}, got {root}.")
        if kind not in POINT_TO_POINT:
            if peer is not None:
                raise ValueError(f"{kind} is among all ranks of its axis and takes no peer.")
            return
        own = self.coords[axis]
        if peer is None or peer == own or not 0 <= peer < size:
            raise ValueError(
                f"{kind} names as peer another coordinate on {axis}, from 0 to {size - 1} and not its own {own}, "
                f"got {peer}."
            )


def _host() -> int:
    return zlib.crc32(socket.gethostname().encode())


def _checked_output(kind: Kind, size: int, tensor: Tensor, out: Tensor | None) -> Tensor:
    """Return the buffer that a collective fills, after the checks that no back end can be trusted with."""
    if not tensor.is_contiguous() or tensor.numel() == 0:
        raise ValueError(f"{kind} needs a contiguous buffer that is not empty, got {tuple(tensor.shape)}.")
    if kind in IN_PLACE:
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
