"""gloo carries collectives between CPUs; the host waits for its asynchronous work."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import launch
from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.contact import Line
from engine.measure.pending import Pending


class GlooChannel:
    """A process group of gloo, which carries out two of its collectives at a time on threads of its own."""

    def __init__(self, group: dist.ProcessGroup, line: Line) -> None:
        self._group, self._line = group, line
        self._ranks = dist.get_world_size(group)

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if kind is Kind.REDUCE_SCATTER:
            # gloo's own sends as much as an all-reduce; an exchange and a local sum send half.
            parts = torch.empty_like(source)
            with self._line.held():
                work = dist.all_to_all_single(parts, source, group=self._group, async_op=True)
        else:
            parts = target
            with self._line.held():
                work = launch(kind, self._group, source, target, peer, async_op=True)
        assert work is not None
        if pending is not None and kind not in POINT_TO_POINT:  # those don't say when they are done
            work.get_future().add_done_callback(lambda _: pending.end())

        def finish() -> None:
            with self._line.held():
                work.wait()
            if parts is not target:
                if pending is not None:
                    pending.resume()  # the sum is this rank's own work
                torch.sum(parts.view(self._ranks, -1), dim=0, out=target)

        return finish
