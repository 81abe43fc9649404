"""zeus reads the accelerator that a rank trains on: NVML's and AMD SMI's counters of energy, or else their power.

zeus is an optional dependency and is loaded only here, where a run has an accelerator.
"""

import logging
import os
import re
from typing import Any

from engine.energy.counter import Counter, Found, Unreadable
from engine.energy.power import SAMPLE_S, PowerSum

SCOPE = "the job's own devices"
RENEWED_S = 0.1
"""The libraries don't say it: a tenth of a second is what is seen of the slower ones."""
_MILLI = 1e-3


def find(index: int, uuid: str) -> Found:
    """Find the device of this number among those that the process sees. uuid: as CUDA says it, to make sure of it."""
    try:
        return Found((_counter(index, uuid),))
    except Unreadable as why:
        return Found(missing={"device": why})


def _counter(index: int, uuid: str) -> Counter:
    """Open its counter. Raises Unreadable."""
    try:
        from zeus.device.gpu import get_gpus
    except ImportError:
        raise Unreadable("zeus, which reads it, is not installed (pip install '.[energy]')", mend=True) from None
    logging.getLogger("zeus").setLevel(logging.ERROR)
    try:
        gpus = get_gpus()
        place = _place(gpus.gpus, index, uuid)
        library = "NVML" if type(gpus).__name__.startswith("NVIDIA") else "AMD SMI"
        counts = gpus.supports_get_total_energy_consumption(place)
    except Exception as error:  # of the drivers' libraries below zeus, too
        raise Unreadable(f"zeus can't read it: {_in_words(error)}") from None

    def reading(call: str) -> float:
        try:
            return float(getattr(gpus, call)(place)) * _MILLI
        except Exception as error:
            raise Unreadable(f"{library} doesn't tell it: {_in_words(error)}") from None

    if counts:
        reading(energy := "get_total_energy_consumption")
        return Counter("device", f"{library}, total energy", SCOPE, lambda: reading(energy), RENEWED_S)
    try:
        reading(power := "get_instant_power_usage")
    except Unreadable:
        reading(power := "get_average_power_usage")
    summed = PowerSum(lambda: reading(power))
    summed.begin()
    return Counter(
        "device", f"{library}, power summed", SCOPE, summed.read, RENEWED_S, sample_s=SAMPLE_S, close=summed.end
    )


def _place(gpus: Any, index: int, uuid: str) -> int:
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


def _in_words(error: Exception) -> str:
    """Give the error's first sentence."""
    return re.split(r"\.\s|\n", str(error) or type(error).__name__)[0][:160].rstrip(".")
