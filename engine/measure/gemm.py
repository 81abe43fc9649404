"""Measure how fast matrix products are: on one device alone, or on all ranks of a job at once.

A multiplication of n x n matrices counts 2 n^3. fp32 means fp32: TF32 is a format of its own, asked for by name.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

TARGET_S = 1.0  # time to spend on one size
FEWEST, MOST = 3, 30  # samples of one size
WINDOW_S = 0.5  # of all ranks at once: long against the turns that they take on shared cores
JOINT_SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192, 16384)}
SAMPLE_S = 0.002
"""Length of a sample: of what is shorter it has several calls."""


def calls_of(once_s: float) -> int:
    """Return how many calls one sample has, of the time of one call."""
    return max(1, round(SAMPLE_S / max(once_s, 1e-6)))


def own_clock() -> Callable[[], float]:
    """Return the clock of a rank on a processor: of one thread its own, which stops while others have its core."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def sample(
    call: Callable[[], object], calls: int, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return seconds of one call, the mean of several in a row. clock: a processor's, in seconds."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


@contextmanager
def full_precision(*, tf32: bool = False) -> Iterator[None]:
    """Multiply and convolve without TF32, or with it where it is asked for; as before afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


class GemmTimer:
    """Timer of products of two n x n matrices of random numbers, as zeros are faster. Raises torch.OutOfMemoryError.

    mode: how both factors lie in memory, N row by row and T column by column.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, mode: str = "NN") -> None:
        generator = torch.Generator(device).manual_seed(size)
        self.size = size
        a, b = (torch.randn(size, size, dtype=dtype, device=device, generator=generator) for _ in range(2))
        self._a, self._b = (a.t() if mode[0] == "T" else a), (b.t() if mode[1] == "T" else b)
        self._c = torch.empty(size, size, dtype=dtype, device=device)
        self.sample(1)

    def sample(self, calls: int) -> float:
        """Return seconds of one multiplication, the mean of several in a row."""
        return sample(self._multiply, calls, self._a.device)

    def median_s(self, budget_s: float) -> tuple[float, int]:
        """Return seconds of one multiplication, the median of samples, and how many multiplications that took."""
        once_s = self.sample(1)
        calls = calls_of(once_s)
        count = min(MOST, max(FEWEST, int(min(TARGET_S, budget_s - 2 * once_s) / (calls * once_s))))
        return statistics.median(self.sample(calls) for _ in range(count)), count * calls

    def sustained(self, window_s: float, turns: float) -> tuple[int, float]:
        """Multiply for at least so long; return how many multiplications that were, and in how many seconds.

        turns: so many ranks share a core. Then seconds are those of this rank's thread, times the turns: by the clock
        the first and the last that are at it seemed up to twice as fast, having had the core for themselves.
        """
        calls = calls_of(self.sample(1))
        clock = own_clock() if turns > 1 else time.perf_counter
        done, start, begun_s = 0, time.perf_counter(), clock()
        while time.perf_counter() - start < window_s:
            self.sample(calls)
            done += calls
        return done, turns * (clock() - begun_s)

    def _multiply(self) -> None:
        torch.matmul(self._a, self._b, out=self._c)


def joint(
    size: int, dtype: torch.dtype, device: torch.device, meet: Callable[[], None], turns: float
) -> tuple[int, float]:
    """Count this rank's products of one size while all ranks do the same; return how many, in how many seconds.

    meet: returns when every rank has called it. turns: as GemmTimer.sustained() takes them. What counts is how many
    products end in a window of time, not how long one takes: where ranks take turns on a core, a short product is often
    over within its turn.
    """
    with full_precision():
        timer = GemmTimer(size, dtype, device)
        meet()
        return timer.sustained(WINDOW_S, turns)
