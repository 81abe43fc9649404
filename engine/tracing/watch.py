"""Tracing watches torch's operators on the meta device, attention, collectives, and every storage that lives."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from engine.layers.attention import use_kernel
from engine.layers.matmul import Role, own_mode
from engine.measure.pending import Pending
from engine.measure.recorder import Recorder
from engine.simulator.events import Attention, Convolution, Event, Issue, Mark, MatrixProduct, Segment, Sweep, Wait
from engine.tracing.carried_out import FREE, carried_out, held, on_meta

aten = torch.ops.aten
ROWS_ONLY = {aten.index_select.default: 2, aten.embedding.default: 2, aten.gather.default: 2}
"""These operators read only the rows that they give back: so many times the bytes of these are moved."""
ADDS_ROWS = {aten._index_put_impl_.default: 3, aten.scatter_add_.default: 1, aten.scatter_.value_reduce: 1}
"""These write only as many elements as their last tensor has: so many times its bytes are moved."""


class Log:
    """Events in the order of their coming, and the bytes that live."""

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
    """Watch over every operator on the meta device, and the storages that they make."""

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
        out = carried_out(func, args, given)
        made = list(on_meta([out]))
        for tensor in made:
            self._see(tensor)
        if made and func not in FREE and not func.is_view and func.namespace != "c10d" and not _aside(func, args):
            self._count(func, args, given, out, made)
        return out

    def one_kernel(self, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Run a function as a GPU's compiler would have it: it reads each argument and writes each result once."""
        taken = {id(tensor): tensor for tensor in on_meta([*args, *given.values()])}
        versions = [tensor._version for tensor in taken.values()]
        with _disable_current_modes():
            out = function(*args, **given)
        written = [tensor for tensor, old in zip(taken.values(), versions, strict=True) if tensor._version != old]
        made = [tensor for tensor in on_meta([out]) if id(tensor) not in taken]
        for tensor in made:
            self._see(tensor)
        self._log.sweep(sum(map(held, (*taken.values(), *written, *made))))
        return out

    def _count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, made: list[Tensor]) -> None:
        if func in PRODUCTS:
            first = PRODUCTS[func]
            a, b = args[first : first + 2]
            self._log.add(MatrixProduct(a.shape[0], b.shape[1], a.shape[1], _letter(a) + _letter(b), a.element_size()))
        elif func is aten.convolution.default:
            images, weight = args[:2]
            self._log.add(_convolution(Role.FORWARD, made[0], weight, [images, weight, *made]))
        elif func is aten.convolution_backward.default:
            dO, images, weight = args[:3]
            roles = Role.INPUT_GRADIENT, Role.WEIGHT_GRADIENT
            for role, other, gradient in zip(roles, (weight, images), out, strict=False):
                if gradient is not None:
                    self._log.add(_convolution(role, dO, weight, [dO, other, gradient]))
        elif func in ROWS_ONLY:
            self._log.sweep(ROWS_ONLY[func] * made[0].nbytes)
        elif func in ADDS_ROWS:
            self._log.sweep(ADDS_ROWS[func] * list(on_meta(args))[-1].nbytes)
        else:
            taken = {id(tensor): tensor for tensor in on_meta([*args, *kwargs.values()])}
            self._log.sweep(sum(map(held, taken.values())) + sum(map(held, made)))

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


PRODUCTS = {aten.mm.default: 0, aten.mm.out: 0, aten.addmm.default: 1, aten.addmm_.default: 1}
"""The two factors of these operators are the arguments from this place on."""


def _convolution(role: Role, images_out: Tensor, weight: Tensor, touched: Sequence[Tensor]) -> Convolution:
    """Describe one of a convolution's three products as that of a linear layer on windows: its rows are the pixels that
    it gives of all images, n its output channels, and k its input channels times the pixels of a window.
    """
    n, k = weight.shape[0], weight[0].numel()
    m = images_out.numel() // n
    shape = {Role.FORWARD: (m, n, k), Role.INPUT_GRADIENT: (m, k, n), Role.WEIGHT_GRADIENT: (n, k, m)}[role]
    return Convolution(*shape, own_mode(role, column_major=False).value, sum(map(held, touched)))


def _aside(func: Any, args: Sequence[Any]) -> bool:
    """Say whether it copies between host and device, for which alone nobody waits: no machine's file has that link."""
    return func is aten.copy_.default and len(args) > 2 and bool(args[2])


def _letter(matrix: Tensor) -> str:
    return "N" if matrix.stride(1) == 1 or matrix.shape[1] == 1 else "T"


class _FusedAttention(torch.autograd.Function):
    """Shapes and storages of fused kernels: the output lies by position, and each row keeps a logarithm."""

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
    return use_kernel(lambda q, k, v, **_: _FusedAttention.apply(q, k, v, log))


class _Waits(Pending):
    """Collective whose wait is an event."""

    __slots__ = ("log", "number")
    log: Log
    number: int

    def wait(self, *, unavoidable: bool) -> None:
        self.log.wait(self.number, blocking=self.blocking or unavoidable)


class TracingRecorder(Recorder):
    """Recorder that writes collectives and phases to a log, and keeps nothing itself."""

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
