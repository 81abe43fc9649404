"""torch.distributed hands a caller this of an asynchronous collective through shared memory."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch.distributed as dist
from torch.futures import Future

from engine.comm.exchange import Exchanged


class Completer:
    """It is a thread that begins with the first order, and waits for collectives whose futures somebody has asked
    for.
    """

    def __init__(self) -> None:
        self._orders: SimpleQueue[Callable[[], None] | None] | None = None

    def later(self, complete: Callable[[], None]) -> None:
        """Have the thread do it."""
        if self._orders is None:
            self._orders = SimpleQueue()
            threading.Thread(target=_obey, args=(self._orders,), name="par4d", daemon=True).start()
        self._orders.put(complete)

    def end(self) -> None:
        """End the thread after what it was given."""
        if self._orders is not None:
            self._orders.put(None)


def _obey(orders: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (order := orders.get()) is not None:
        order()


class MemoryWork(dist.Work):
    """It is a collective in flight. completer: completes a future. results: what the future holds."""

    def __init__(self, completer: Completer, begun: Exchanged, results: Any) -> None:
        super().__init__()
        self._completer, self._begun, self._results = completer, begun, results
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Carry it out here. The group's own time-out holds."""
        self._begun.exchange.finish(self._begun)
        return True

    def is_completed(self) -> bool:
        """Say whether it has been carried out."""
        return self._begun.over

    def is_success(self) -> bool:
        """Say whether it has been carried out well."""
        return self._begun.over and self._begun.error is None

    def result(self) -> Any:
        """Give what the future holds."""
        self.wait()
        return self._results

    def get_future(self) -> "Future[Any]":
        """Give a future that completes without being waited for."""
        if self._future is None:
            self._future = Future()
            if self._begun.over:
                self._complete(self._future)
            else:
                self._completer.later(partial(self._complete, self._future))
        return self._future

    def _complete(self, future: "Future[Any]") -> None:
        try:
            self.wait()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(self._results)
