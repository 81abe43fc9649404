"""A handle is what is left of a collective for its caller to wait for."""

from collections.abc import Callable

from torch import Tensor

from engine.comm.outstanding import Call, Outstanding
from engine.measure.pending import Pending


class Handle:
    """A handle keeps the buffers of a collective that was issued until wait(), which is called exactly once.

    sent: the input buffer. finish: waits for the result; None if it is there already. call: what it is, as
    outstanding notes it. pending: the moments of this collective that a recorder wants.
    """

    __slots__ = ("_finish", "_outstanding", "_pending", "_result", "_sent")

    def __init__(
        self,
        result: Tensor,
        sent: Tensor | None = None,
        finish: Callable[[], None] | None = None,
        call: Call | None = None,
        outstanding: Outstanding | None = None,
        pending: Pending | None = None,
    ) -> None:
        self._result: Tensor | None = result
        self._sent, self._finish, self._outstanding, self._pending = sent, finish, outstanding, pending
        if outstanding is not None and call is not None:
            outstanding.in_flight[self] = call

    def wait(self, *, unavoidable: bool = False) -> Tensor:
        """Return the result once it is there; on CUDA the computing stream waits, not the host.

        unavoidable: the caller has nothing left to do that doesn't need the result, so the recorder counts the wait
        among those that no schedule could hide.
        """
        result, self._result = self._result, None
        if result is None:
            raise RuntimeError("A collective's handle was waited for twice.")
        outstanding = self._outstanding
        if outstanding is not None and self._finish is not None:
            outstanding.awaited = outstanding.in_flight.pop(self)
            try:
                if self._pending is not None:
                    self._pending.wait(unavoidable=unavoidable)
                self._finish()
                if self._pending is not None:
                    self._pending.resume()
            finally:
                outstanding.awaited = None
                outstanding.moves += 1
        self._sent = self._finish = None  # only now may the input's memory go to somebody else
        return result
