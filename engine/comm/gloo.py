"""Collectives between CPUs over gloo, for whose asynchronous work the host waits."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import PendingMessage, launch
from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.contact import Route
from engine.measure.pending import Pending


class Receiver:
    """Thread that waits for messages of one channel, in order of arrival: gloo tells only a waiting thread."""

    def __init__(self) -> None:
        self._awaited: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._begun = False

    def add(self, wait: Callable[[], None]) -> None:
        """Have the thread call wait(), after all earlier ones."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._wait, name="messages", daemon=True).start()
        self._awaited.put(wait)

    def _wait(self) -> None:
        while True:
            self._awaited.get()()


class PendingReceive(PendingMessage):
    """Pending receive: awaited by its caller, or from watch() on by a receiver."""

    def __init__(self, work: dist.Work, route: Route, receiver: Receiver) -> None:
        self._work, self._route, self._receiver = work, route, receiver
        self._came: threading.Event | None = None
        self._error: Exception | None = None

    def __call__(self) -> None:
        if self._came is None:
            with self._route.guard():
                self._work.wait()
            return
        self._came.wait()
        if self._error is not None:
            raise self._error

    def watch(self, notify: Callable[[], None]) -> bool:
        """Have the receiver wait and notify. Only the last call counts until the message has come."""
        self._notify = notify
        if self._came is None:
            self._came = threading.Event()
            self._receiver.add(partial(self._watch, self._came))
        return True

    def arrived(self) -> bool:
        """Return whether the message is there, or failed; False unless it is watched."""
        return self._came is not None and self._came.is_set()

    def _watch(self, came: threading.Event) -> None:
        try:
            with self._route.guard():
                self._work.wait()
        except Exception as error:
            self._error = error
        came.set()
        self._notify()


class GlooChannel:
    """Process group of gloo, which carries out two of its collectives at a time on threads of its own."""

    def __init__(self, group: dist.ProcessGroup, route: Route) -> None:
        self._group, self._route, self._receiver = group, route, Receiver()
        self._ranks = dist.get_world_size(group)

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if kind is Kind.REDUCE_SCATTER:
            # gloo's own sends as much as an all-reduce; an exchange and a local sum send half.
            parts = torch.empty_like(source)
            with self._route.guard():
                work = dist.all_to_all_single(parts, source, group=self._group, async_op=True)
        else:
            parts = target
            with self._route.guard():
                work = launch(kind, self._group, source, target, peer, async_op=True)
        assert work is not None
        if pending is not None and kind not in POINT_TO_POINT:  # those don't say when they are done
            work.get_future().add_done_callback(lambda _: pending.end())

        if kind is Kind.RECV:
            return PendingReceive(work, self._route, self._receiver)

        def finish() -> None:
            with self._route.guard():
                work.wait()
            if parts is not target:
                if pending is not None:
                    pending.resume()  # the sum is this rank's own work
                torch.sum(parts.view(self._ranks, -1), dim=0, out=target)

        return finish
