"""Energy of the accelerator that a rank trains on, by zeus: NVML's and AMD SMI's counters, or else their power, which a
thread beside the run sums. No torch.

zeus is an optional dependency and is loaded only here, where a run has an accelerator.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from engine.energy.counter import Counter, Found, Unreadable

SCOPE = "the job's own devices"
RENEWED_S = 0.1
"""The libraries don't say it: a tenth of a second is what is seen of the slower ones."""
SAMPLE_S = 0.5


def find(index: int, uuid: str) -> Found:
    """Find the device of this number among those that the process sees. uuid: as CUDA says it, to make sure of it."""
    return Found.open({"device": lambda: [_open(index, uuid)]})


def _open(index: int, uuid: str) -> Counter:
    """Open its counter. Raises Unreadable."""
    try:
        from zeus.device.gpu import get_gpus
    except ImportError:
        raise Unreadable("zeus, which reads it, is not installed (pip install '.[energy]')", mend=True) from None
    logging.getLogger("zeus").setLevel(logging.ERROR)
    try:
        gpus = get_gpus()
        place = _find_place(gpus.gpus, index, uuid)
        library = "NVML" if type(gpus).__name__.startswith("NVIDIA") else "AMD SMI"
        counts = gpus.supports_get_total_energy_consumption(place)
    except Exception as error:  # of the drivers' libraries below zeus, too
        raise Unreadable(f"zeus can't read it: {_first_sentence(error)}") from None

    def read(call: str) -> float:
        try:
            return float(getattr(gpus, call)(place)) / 1e3
        except Exception as error:
            raise Unreadable(f"{library} doesn't tell it: {_first_sentence(error)}") from None

    if counts:
        read(energy := "get_total_energy_consumption")
        return Counter("device", f"{library}, total energy", SCOPE, lambda: read(energy), RENEWED_S)
    try:
        read(power := "get_instant_power_usage")
    except Unreadable:
        read(power := "get_average_power_usage")
    summed = PowerSum(lambda: read(power))
    summed.begin()
    return Counter(
        "device", f"{library}, power summed", SCOPE, summed.read, RENEWED_S, sample_s=SAMPLE_S, close=summed.end
    )


def _find_place(gpus: Any, index: int, uuid: str) -> int:
    """Find the device among those of zeus: CUDA may number them in another order than NVML. AMD SMI has no such names.

    Raises Unreadable where another card than the process's might be read.
    """
    try:
        import pynvml

        names = [str(pynvml.nvmlDeviceGetUUID(gpu.handle)) for gpu in gpus]
    except Exception:
        if "ROCR_VISIBLE_DEVICES" in os.environ and "HIP_VISIBLE_DEVICES" not in os.environ:
            raise Unreadable("it can't tell which card ROCR_VISIBLE_DEVICES means: set HIP_VISIBLE_DEVICES") from None
        return index
    if uuid and names and not any(uuid in name for name in names):
        raise Unreadable("NVML knows no card by the name that CUDA gives it, as of a MIG slice")
    return next((place for place, name in enumerate(names) if uuid and uuid in name), index)


def _first_sentence(error: Exception) -> str:
    return re.split(r"\.\s|\n", str(error) or type(error).__name__)[0][:160].rstrip(".")


class PowerSum:
    """Sum of power over time since the first sample, by the mean of each two neighbours.

    watts: raises Unreadable; a sample that did is reported by the next read(). clock: in seconds.
    """

    def __init__(self, watts: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._watts, self._clock = watts, clock
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self._failed: Unreadable | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """Sample every SAMPLE_S seconds until end()."""

        def sample_until_end() -> None:
            while not self._ended.wait(SAMPLE_S):
                self.sample()

        threading.Thread(target=sample_until_end, name="power samples", daemon=True).start()

    def end(self) -> None:
        """Take no more samples."""
        self._ended.set()

    def read(self) -> float:
        """Return the joules up to now. Raises Unreadable."""
        self.sample()
        with self._lock:
            if self._failed is not None:
                raise self._failed
            return self._joules

    def sample(self) -> None:
        """Take a sample now."""
        with self._lock:
            try:
                watts = self._watts()
            except Unreadable as why:
                self._failed = self._failed or why
                return
            now_s = self._clock()
            if self._last is not None:
                before_s, before_w = self._last
                self._joules += (now_s - before_s) * (watts + before_w) / 2
            self._last = now_s, watts
