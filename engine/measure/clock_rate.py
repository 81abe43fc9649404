"""Read the clock of what a rank computes on, in Hz. It is kept busy meanwhile: what is idle slows down on purpose.

NVML and AMD SMI are asked through torch, where they are installed; processors by the kernel's files. No torch here.
"""

import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from engine.measure.machine import read_or_nothing, sysfs

if TYPE_CHECKING:
    import torch

PROCESSOR_BUSY_S, DEVICE_BUSY_S = 0.03, 0.2
"""The kernel tells a processor's mean clock between two ticks, which are up to 10 ms apart."""
SIZE, PRODUCTS = 4096, 8
"""A device is busy with square products of this size, and has so many of them ahead of it when it is asked."""
_KILO, _MEGA = 1e3, 1e6
_CORE_FIELD = 36
"""The processor stands in this place behind the name in /proc/PID/stat (proc_pid_stat(5), "processor")."""


def clock_hz(device: "torch.device") -> float | None:
    """Return this rank's clock now; None where it can't be read, for whatever reason."""
    if device.type != "cpu":
        try:
            return _device_hz(device)
        except Exception:  # of the drivers' libraries, or no memory is left
            return None
    end = time.perf_counter() + PROCESSOR_BUSY_S
    while time.perf_counter() < end:
        pass
    return core_hz(_core(), sysfs(), Path("/proc/cpuinfo"))


def core_hz(core: int, root: Path, information: Path) -> float | None:
    """Read the clock of the processor of this number, below a sysfs root or else in the text of /proc/cpuinfo."""
    khz = read_or_nothing(root / f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").strip()
    if khz.isdecimal():
        return _KILO * int(khz) or None
    text = read_or_nothing(information)
    match = re.search(rf"^processor\s*: {core}\n(?:.+\n)*?cpu MHz\s*: (\d+(?:\.\d+)?)$", text, re.MULTILINE)
    return _MEGA * float(match[1]) or None if match else None


def _core() -> int:
    """Return the number of the processor that this thread is on; -1 where the kernel doesn't tell."""
    fields = read_or_nothing(Path("/proc/thread-self/stat")).rpartition(")")[2].split()
    return int(fields[_CORE_FIELD]) if len(fields) > _CORE_FIELD else -1


def _device_hz(device: "torch.device") -> float | None:
    """Read a device's clock. Raises whatever torch or a driver's library does, and UserWarning where another card
    might be read.
    """
    import torch

    drawing = torch.Generator(device).manual_seed(0)
    matrix = torch.rand(SIZE, SIZE, dtype=torch.bfloat16, device=device, generator=drawing)
    product = torch.empty_like(matrix)
    end = time.perf_counter() + DEVICE_BUSY_S
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        while True:
            for _ in range(PRODUCTS):
                torch.mm(matrix, matrix, out=product)
            rate = torch.cuda.clock_rate(device)
            torch.cuda.current_stream(device).synchronize()
            if time.perf_counter() > end:
                return _MEGA * rate or None
