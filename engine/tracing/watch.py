"""Tracing watches torch's operators on the meta device, attention, collectives, and every storage that lives."""

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from engine.layers.attention import computed_by
from engine.measure.pending import Pending
from engine.measure.recorder import Recorder
from engine.simulator.events import Attention, Event, Issue, Mark, MatrixProduct, Segment, Sweep, Wait

aten = torch.ops.aten
ROWS_ONLY = {aten.index_select.default: 2, aten.embedding.default: 2, aten.gather.default: 2}
"""These operators read only the rows that they give back: so many times the bytes of these are moved."""
ADDS_ROWS = {aten._index_put_impl_.default: 3, aten.scatter_add_.default: 1, aten.scatter_.value_reduce: 1}
"""These write only as many elements as their last tensor has: so many times its bytes are moved."""
FREE = {aten.detach.default, aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default}


class Log:
    """It keeps events as they come, and counts the bytes that live."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._issued = 0
        self.start()

    def start(self) -> None:
        """Begin a segment."""
        self.events: list[Event] = []
        self.memory: list[tuple[int, int]] = []
        self._bytes = self._kernels = 0
        self._most = self.live

    def sweep(self, num_bytes: int) -> None:
        """Add a kernel that reads and writes so much; neighbours are one event."""
        self._bytes += num_bytes
        self._kernels += 1

    def add(self, event: Event) -> None:
        """Add an event, after the sweep of the kernels before it."""
        if self._kernels:
            self._append(Sweep(self._bytes, self._kernels))
            self._bytes = self._kernels = 0
        self._append(event)

    def issue(self, event: Issue) -> int:
        """Add a collective and return its number, counted from 1."""
        self.add(event)
        self._issued += 1
        return self._issued

    def wait(self, number: int, *, blocking: bool) -> None:
        """Add a wait for the collective of that number."""
        self.add(Wait(self._issued + 1 - number, blocking))

    def segment(self, repeats: int) -> Segment:
        """Return what came since start()."""
        if self._kernels:
            self._append(Sweep(self._bytes, self._kernels))
        return Segment(repeats, self.events, self.memory)

    def _append(self, event: Event) -> None:
        self.memory.append((len(self.events), self._most))
        self.events.append(event)
        self._most = self.live

    def allocated(self, num_bytes: int) -> None:
        self.live += num_bytes
        self._most = max(self._most, self.live)
        self.peak = max(self.peak, self.live)

    def freed(self, num_bytes: int) -> None:
        self.live -= num_bytes


class Operators(TorchDispatchMode):
    """It sees every operator on the meta device, and the storages that they make."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is aten._fused_adamw_.default or func is aten._fused_adamw_.tensor_lr:
            passes = 7 if given.get("grad_scale") is None else 8  # reads p, g, m, v; writes p, m, v, and a scaled g
            self._log.sweep(passes * sum(tensor.nbytes for tensor in args[0]))
            return None
        out = _carried_out(func, args, given)
        made = list(_meta([out]))
        for tensor in made:
            self._see(tensor)
        if made and func not in FREE and not func.is_view and func.namespace != "c10d" and not _aside(func, args):
            self._count(func, args, given, made)
        return out

    def one_kernel(self, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Run a function as a GPU's compiler would have it: it reads each argument and writes each result once."""
        taken = {id(tensor): tensor for tensor in _meta([*args, *given.values()])}
        versions = [tensor._version for tensor in taken.values()]
        with _disable_current_modes():
            out = function(*args, **given)
        written = [tensor for tensor, old in zip(taken.values(), versions, strict=True) if tensor._version != old]
        made = [tensor for tensor in _meta([out]) if id(tensor) not in taken]
        for tensor in made:
            self._see(tensor)
        self._log.sweep(sum(map(_held, (*taken.values(), *written, *made))))
        return out

    def _count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: list[Tensor]) -> None:
        if func in PRODUCTS:
            first = PRODUCTS[func]
            a, b = args[first : first + 2]
            self._log.add(MatrixProduct(a.shape[0], b.shape[1], a.shape[1], _letter(a) + _letter(b), a.element_size()))
        elif func in ROWS_ONLY:
            self._log.sweep(ROWS_ONLY[func] * made[0].nbytes)
        elif func in ADDS_ROWS:
            self._log.sweep(ADDS_ROWS[func] * list(_meta(args))[-1].nbytes)
        else:
            taken = {id(tensor): tensor for tensor in _meta([*args, *kwargs.values()])}
            self._log.sweep(sum(map(_held, taken.values())) + sum(map(_held, made)))

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        num_bytes = storage.nbytes()
        self._known.add(key)
        self._log.allocated(num_bytes)
        weakref.finalize(storage, self._forget, key, num_bytes).atexit = False

    def _forget(self, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self._log.freed(num_bytes)


def _carried_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Carry out an operator, but make new tensors alone where it is known what comes of such arguments, as torch's own
    answer, in Python, takes most of the time of a trace.
    """
    if func in IN_PLACE and args[0].is_meta:
        return args[0]
    if not _makes_new(func):
        return func(*args, **kwargs)
    asked = func, _seen(args), _seen(tuple(kwargs.items()))
    if known := _KNOWN.get(asked):
        made = tuple(torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in known)
        return made[0] if len(made) == 1 else made
    out = func(*args, **kwargs)
    _KNOWN[asked] = _new(out if isinstance(out, tuple) else (out,), [*args, *kwargs.values()])
    return out


_Shapes = tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]
_KNOWN: dict[Hashable, _Shapes] = {}
"""Shapes, strides and dtypes of what operators gave back, by operator and arguments; nothing where that isn't all."""


@cache
def _makes_new(func: Any) -> bool:
    """Say whether an operator gives back tensors that share nothing with what it takes, and writes to none of that."""
    schema = func._schema
    if func in FREE or func.namespace != "aten" or any(one.alias_info for one in (*schema.arguments, *schema.returns)):
        return False
    return bool(schema.returns) and all(str(one.type) == "Tensor" for one in schema.returns)


def _seen(value: Any) -> Hashable:
    """Give all of an argument that decides about the shapes of what comes of it."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, list | tuple):
        return tuple(map(_seen, value))
    return type(value), value


def _new(made: Sequence[Tensor], given: Sequence[Any]) -> _Shapes:
    """Describe the tensors; nothing unless each is on the meta device and is all of a storage of its own."""
    storages = [tensor.untyped_storage() for tensor in made]
    taken = {tensor.untyped_storage()._cdata for tensor in _meta(given)}
    own = {storage._cdata for storage in storages} - taken
    found = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in made)
    again = [torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in found]
    whole = all(one.nbytes() == two.untyped_storage().nbytes() for one, two in zip(storages, again, strict=True))
    return found if len(own) == len(made) and whole and all(tensor.is_meta for tensor in made) else ()


IN_PLACE = {
    aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.mul_.Scalar, aten.div_.Tensor, aten.copy_.default,
    aten.zero_.default, aten.exp_.default, aten.rsqrt_.default, aten.square_.default, aten.addcmul_.default,
    aten.addmm_.default, aten._index_put_impl_.default, aten.scatter_add_.default, aten.scatter_.value_reduce,
}  # fmt: skip
PRODUCTS = {aten.mm.default: 0, aten.mm.out: 0, aten.addmm.default: 1, aten.addmm_.default: 1}
"""The two factors of these operators are the arguments from this place on."""


def _aside(func: Any, args: Sequence[Any]) -> bool:
    """Say whether it copies between host and device, for which alone nobody waits: no machine's file has that link."""
    return func is aten.copy_.default and len(args) > 2 and bool(args[2])


def _meta(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.is_meta:
                yield value
        elif isinstance(value, list | tuple):
            yield from _meta(value)


def _held(tensor: Tensor) -> int:
    """Count the bytes of a tensor; what is repeated by a stride of 0 is read once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _letter(matrix: Tensor) -> str:
    return "N" if matrix.stride(1) == 1 or matrix.shape[1] == 1 else "T"


class _FusedAttention(torch.autograd.Function):
    """It has the fused kernels' shapes and storages: the output lies by position, and each row keeps a logarithm."""

    @staticmethod
    def forward(ctx: Any, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, log: Log) -> Tensor:
        batch, heads, sequence, size = q_BNSD.shape
        out_BNSD = q_BNSD.new_empty(batch, sequence, heads, size).transpose(1, 2)
        sums_BNS = q_BNSD.new_empty(batch, heads, sequence, dtype=torch.float32)
        ctx.save_for_backward(q_BNSD, k_BNSD, v_BNSD, out_BNSD, sums_BNS)
        ctx.log = log
        log.add(Attention(batch * heads, sequence, size, q_BNSD.element_size(), backward=False))
        return out_BNSD

    @staticmethod
    def backward(ctx: Any, dO_BNSD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BNSD, k_BNSD, v_BNSD, _, _ = ctx.saved_tensors
        batch, heads, sequence, size = q_BNSD.shape
        dq, dk, dv = (torch.empty_like(t.transpose(1, 2)).transpose(1, 2) for t in (q_BNSD, k_BNSD, v_BNSD))
        ctx.log.add(Attention(batch * heads, sequence, size, q_BNSD.element_size(), backward=True))
        return dq, dk, dv, None


def fused_attention(log: Log) -> AbstractContextManager[None]:
    """Log attention as one event, in blocks that are recomputed in a backward, too."""
    return computed_by(lambda q, k, v, **_: _FusedAttention.apply(q, k, v, log))


class _Waits(Pending):
    """It is a collective whose wait is an event."""

    __slots__ = ("log", "number")
    log: Log
    number: int

    def wait(self, *, unavoidable: bool) -> None:
        self.log.wait(self.number, blocking=self.blocking or unavoidable)


class TracingRecorder(Recorder):
    """It writes collectives and phases to a log, and records nothing itself."""

    def __init__(self, log: Log) -> None:
        super().__init__(alone=True)
        self._log = log

    def issued(
        self, kind: str, axis: str, lane: str, num_bytes: int, *, blocking: bool, at_once: bool = False
    ) -> Pending | None:
        pending = _Waits(self._clock, kind, axis, lane, blocking, at_once, 0.0)
        pending.log, pending.number = self._log, self._log.issue(Issue(str(kind), str(axis), str(lane), num_bytes))
        return pending

    def mark(self, phase: str) -> None:
        self._log.add(Mark(phase))
