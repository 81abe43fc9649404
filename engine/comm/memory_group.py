# mypy: disable-error-code="override, assignment"
# Of the overloads that torch declares, those with options alone are called.
"""This is a group of torch.distributed whose calls go through memory that its ranks share, or over gloo."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.exchange import Exchange, Inputs
from engine.comm.memory_work import Completer, MemoryWork
from engine.comm.shared_memory import add_up

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


class GroupWithMemory(dist.ProcessGroup):
    """It hands a call to memory or to gloo, which is in the group as the back end of the processor.

    carried: of its calls, how many went each way. Messages between two ranks are gloo's: only two take part.
    """

    def __init__(self, own: int, ranks: int, gloo: dist.ProcessGroupGloo, exchange: Exchange | None):
        super().__init__(own, ranks)  # type: ignore[call-arg]
        self._plain: Any = dist.ProcessGroup(own, ranks)  # type: ignore[call-arg]
        for group in (self, self._plain):
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._gloo, self._exchange, self._own, self._ranks = gloo, exchange, own, ranks
        self._completer = Completer()
        self.carried = {"memory": 0, "gloo": 0}

    def shutdown(self) -> None:
        """End the thread that completes futures."""
        self._completer.end()

    def _work(
        self, sort: str, pieces: Sequence[Tensor], size: int, read: Callable[[Inputs], None], results: Any, options: Any
    ) -> dist.Work:
        """Begin a collective; one that isn't asynchronous is carried out at once. size: in bytes, equal on all
        ranks.
        """
        assert self._exchange is not None
        self.carried["memory"] += 1
        begun = self._exchange.begin(SORTS.index(sort) + len(SORTS) * size, pieces, read)
        work = MemoryWork(self._completer, begun, results)
        if not getattr(options, "asyncOp", True):
            work.wait()
        return work

    def _leave(self, name: str, *arguments: Any) -> dist.Work:
        """Hand a call to gloo, as it was called."""
        self.carried["gloo"] += 1
        by = self._plain if name.endswith("_tensor_coalesced") else self._gloo  # Python reaches those of a group only
        return getattr(by, name)(*(one for one in arguments if one is not None))

    def _can(self, *tensors: Tensor, op: Any = None) -> bool:
        """Say whether memory carries these: tensors of processors, dense, and with a sum that it knows."""
        return (
            self._exchange is not None
            and (op is None or _kind(op) in COMBINE)
            and all(t.device.type == "cpu" and t.layout is torch.strided and t.is_contiguous() for t in tensors)
        )

    def _reduced(self, parts: list[Tensor], op: Any, out: Tensor) -> None:
        kind = _kind(op)
        add_up(parts, COMBINE[kind], out)
        if kind == _OP.AVG:
            out.div_(self._ranks) if out.is_floating_point() else out.floor_divide_(self._ranks)

    def barrier(self, opts: Any = None) -> dist.Work:
        if self._exchange is None:
            return self._leave("barrier", opts)
        return self._work("barrier", [], 0, lambda _: None, [], opts)

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> dist.Work:
        return self._leave("send", tensors, to, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> dist.Work:
        return self._leave("recv", tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        return self._leave("recv_anysource", tensors, tag)


def operation(options: Any) -> Any:
    """Give the caller's operation; where it names none it is a sum."""
    return getattr(options, "reduceOp", _OP.SUM)


def _kind(op: Any) -> Any:
    """Find which of COMBINE it is, if it is one. A ReduceOp is hashed by its object, not by its kind."""
    state: Any = op.__getstate__() if isinstance(op, dist.ReduceOp) else (op,)
    return state[0]
