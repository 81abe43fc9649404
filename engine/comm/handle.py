"""Handle: what is left of a collective for its caller to wait for."""

from collections.abc import Callable

from torch import Tensor

from engine.measure.recorder import Flight


class Handle:
    """A collective that was issued. Keeps its buffers until wait(), which is called exactly once.

    sent: the input buffer. finish: waits for the result; None if it is there already. in_flight: all handles of a Comm
    that are still to be waited for, this one among them. flight: the moments of this collective that a recorder wants.
    """

    __slots__ = ("_finish", "_flight", "_in_flight", "_result", "_sent")

    def __init__(
        self,
        result: Tensor,
        sent: Tensor | None = None,
        finish: Callable[[], None] | None = None,
        in_flight: "dict[Handle, None] | None" = None,
        flight: Flight | None = None,
    ) -> None:
        self._result: Tensor | None = result
        self._sent, self._finish, self._in_flight, self._flight = sent, finish, in_flight, flight
        if in_flight is not None:
            in_flight[self] = None

    def wait(self, *, unavoidable: bool = False) -> Tensor:
        """Return the result once it is there; on CUDA the computing stream waits, not the host.

        unavoidable: the caller has nothing left to do that doesn't need the result, so the recorder counts the wait
        among those that no schedule could hide.
        """
        result, self._result = self._result, None
        if result is None:
            raise RuntimeError("A collective's handle was waited for twice.")
        if self._in_flight is not None:
            del self._in_flight[self]
        if self._finish is not None:
            if self._flight is not None:
                self._flight.wait(unavoidable=unavoidable)
            self._finish()
            if self._flight is not None:
                self._flight.resume()
        self._sent = self._finish = None  # only now may the input's memory go to somebody else
        return result
