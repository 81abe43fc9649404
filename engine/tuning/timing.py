"""Time the products of a layer's shape in every mode, with the weight stored either way.

Whatever has to be copied for a mode is copied within its time. Values are drawn from a normal distribution, as initial
weights and normalised activations are: zeros, which draw less power, would be faster. Modes take turns, so that what
disturbs the machine for longer than a round disturbs all alike; all ranks time at once, as they train. On processors
the operands of each round lie elsewhere, as those of each layer do: by where they lay one mode or another seemed up to
a tenth faster, and two timings agreed less often. There a rank of one thread counts that thread's time, without what
others take of its core: of eight ranks on two cores one mode's times by the clock differed twentyfold between rounds.
"""

import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.layers import matmul
from engine.layers.matmul import Mode, Role, list_modes, own_mode
from engine.measure.gemm import calls_of, own_clock, sample
from engine.measure.memory import forget_peak, free_bytes
from engine.measure.rounds import shuffled, take_turns
from engine.precision import Precision
from engine.tuning.shapes import Products, Shape

log = logging.getLogger(__name__)

FEWEST, MOST = 7, 21
"""Rounds of a timing; of fewer no interval is known."""
GAPS, GAP_BYTES = 6, 800_000
"""Gaps between operands, and the most bytes of one; every other one is free again when they are placed."""


@dataclass(frozen=True, slots=True, order=True)
class GemmVariant:
    """One product of a layer in one mode, with the weight stored one way."""

    column_major: bool
    role: Role
    mode: Mode

    @property
    def own(self) -> bool:
        """Whether it copies nothing."""
        return self.mode is own_mode(self.role, column_major=self.column_major)

    def copied(self, shape: Shape) -> int:
        """Count the elements that it copies; what oneDNN packs is not known."""
        if self.mode is Mode.ONEDNN:
            return 0
        own = own_mode(self.role, column_major=self.column_major)
        m, n, k = shape.m, shape.n, shape.k
        weights = (m * n, m * k)[:: -1 if self.column_major else 1]
        sizes = {Role.FORWARD: (m * k, n * k), Role.INPUT_GRADIENT: (m * n, n * k), Role.WEIGHT_GRADIENT: weights}
        return sum(size for size, mine, wanted in zip(sizes[self.role], own, self.mode, strict=True) if mine != wanted)


def gemm_variants(dtype: torch.dtype, device: torch.device, *, movable: bool) -> list[GemmVariant]:
    """List every variant that there is here, first those of a weight that is stored row by row."""
    stored = (False, True) if movable else (False,)
    return [GemmVariant(*way, mode) for way in product(stored, Role) for mode in list_modes(way[1], dtype, device)]


class Operands:
    """Operands are what the products of a shape take in layers. Making them raises torch.OutOfMemoryError."""

    def __init__(self, of: Products, precision: Precision, device: torch.device, *, movable: bool) -> None:
        shape, dtype = of.shape, precision.compute
        generator = torch.Generator(device).manual_seed(shape.m ^ shape.n << 20 ^ shape.k << 40)

        def drawn(*size: int) -> Tensor:
            return torch.randn(size, dtype=dtype, device=device, generator=generator)

        self._I_MK, self._dO_MN = drawn(shape.m, shape.k), drawn(shape.m, shape.n)
        self._weights = {False: drawn(shape.n, shape.k)}
        if movable:
            self._weights[True] = self._weights[False].t().contiguous().t()
        self._bias = drawn(shape.n) if of.bias else None
        self._out = torch.zeros_like(self._weights[False], dtype=precision.master if of.widened else dtype)
        self._add = of.accumulates
        self._between: list[Tensor] = []

    def move(self, drawing: random.Random) -> None:
        """Move the operands elsewhere in memory, with gaps that are drawn."""
        self._between = [torch.empty(drawing.randrange(GAP_BYTES), dtype=torch.uint8) for _ in range(GAPS)]
        del self._between[::2]
        self._I_MK = self._I_MK.clone()
        self._dO_MN = self._dO_MN.clone()
        self._out = self._out.clone()
        for column_major in self._weights:
            self._weights[column_major] = self._weights[column_major].clone()

    @staticmethod
    def held_bytes(of: Products, precision: Precision, *, movable: bool) -> int:
        """Count the bytes held, with the largest result or that operand's second copy while it is moved."""
        m, n, k = of.shape.m, of.shape.n, of.shape.k
        size, out = precision.compute.itemsize, (precision.master if of.widened else precision.compute).itemsize
        weights = (2 if movable else 1) * n * k
        return (m * k + m * n + weights) * size + n * k * out + max(m * n * size, m * k * size, n * k * out)

    def compute(self, way: GemmVariant) -> None:
        """Compute one product."""
        weight, mode = self._weights[way.column_major], None if way.own else way.mode
        match way.role:
            case Role.FORWARD:
                matmul.forward(self._I_MK, weight, self._bias, mode)
            case Role.INPUT_GRADIENT:
                matmul.input_gradient(self._dO_MN, weight, mode)
            case Role.WEIGHT_GRADIENT:
                out = self._out.view(weight.shape[::-1]).t() if way.column_major else self._out
                matmul.weight_gradient(out, self._dO_MN, self._I_MK, add=self._add, mode=mode)


def time_shape(
    of: Products,
    precision: Precision,
    comm: Comm,
    all_ways: Sequence[GemmVariant],
    *,
    budget_s: float,
    rounds: int | None = None,
) -> dict[GemmVariant, list[float]]:
    """Time these ways: seconds of each by round, the mean over ranks. Collective.

    A way whose copies don't fit the memory of every rank is left out, and all of them where the operands don't.
    budget_s: rounds are as many as fit it, FEWEST at least, unless their number is given.
    """
    shape, dtype = of.shape, precision.compute
    device, movable = comm.device, any(way.column_major for way in all_ways)
    forget_peak(device)  # what an earlier shape took is free again
    free = free_bytes(device) / comm.ranks_sharing_memory()
    held = Operands.held_bytes(of, precision, movable=movable)
    fits = [held + way.copied(shape) * dtype.itemsize <= free for way in all_ways]
    ways = _of_all(comm, all_ways, fits)
    operands = _operands(of, precision, comm, movable=movable) if ways else None
    if operands is None:
        log.warning("%s: no memory to try any way to compute it", shape)
        return {}

    clock = own_clock()

    def seconds(way: GemmVariant, calls: int) -> float:
        return sample(lambda: operands.compute(way), calls, device, clock)

    def works(way: GemmVariant) -> bool:
        try:
            seconds(way, 1)
        except torch.OutOfMemoryError:
            return False
        return True

    ways = _of_all(comm, ways, [works(way) for way in ways])
    if len(ways) < len(all_ways):
        log.warning("%s: no memory to try %d of %d ways to compute it", shape, len(all_ways) - len(ways), len(all_ways))
    if not ways:
        return {}
    once = [seconds(way, 1) for way in ways]
    once = comm.gather_rows(torch.tensor(once, dtype=torch.float64)).amax(0).tolist()
    calls = {way: calls_of(once_s) for way, once_s in zip(ways, once, strict=True)}
    round_s = sum(calls[way] * once_s for way, once_s in zip(ways, once, strict=True))
    rounds = rounds or min(MOST, max(FEWEST, int(budget_s / round_s)))
    drawing = random.Random(0)  # the same order on all ranks
    times: dict[GemmVariant, list[float]] = {way: [] for way in ways}

    def begin(number: int) -> bool:
        if device.type == "cpu":
            operands.move(drawing)
        return True

    for _, way in take_turns(ways, rounds, shuffled(drawing), begin):
        times[way].append(seconds(way, calls[way]))
    mine = torch.tensor(list(times.values()), dtype=torch.float64)
    means = comm.gather_rows(mine.flatten()).mean(0).view(mine.shape).tolist()
    return dict(zip(ways, means, strict=True))


def _of_all(comm: Comm, ways: Sequence[GemmVariant], can: Sequence[bool]) -> list[GemmVariant]:
    """Return the ways that every rank can take. Collective."""
    everyone = comm.gather_rows(torch.tensor(can)).all(0).tolist()
    return [way for way, all_can in zip(ways, everyone, strict=True) if all_can]


def _operands(of: Products, precision: Precision, comm: Comm, *, movable: bool) -> Operands | None:
    """Make the operands; None where they don't fit the memory of some rank after all. Collective."""
    try:
        operands = Operands(of, precision, comm.device, movable=movable)
    except torch.OutOfMemoryError:
        operands = None
    return operands if comm.unanimous(operands is not None) else None


SIZE = {"cpu": 256, "cuda": 4096}
"""Size of the square product: on a processor it is over before another process takes its turn."""
WINDOW_S = 0.3
FEWEST = 10


def rate(device: torch.device) -> float:
    """Measure flop/s in fp32 of an accelerator, or of one thread of a processor, in the shortest run of the window.

    What disturbs a machine makes runs longer, and several threads seldom run at once on a busy one.
    """
    size = SIZE[device.type]
    a, b = torch.ones(2, size, size, device=device)
    out = torch.empty(size, size, device=device)
    runs: list[float] = []
    with _one_thread():
        end = time.perf_counter() + WINDOW_S
        while len(runs) < FEWEST or time.perf_counter() < end:
            runs.append(sample(lambda: torch.mm(a, b, out=out), 1, device))
    return 2 * float(size) ** 3 / min(runs)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
