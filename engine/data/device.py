"""A batch on its way to a device."""

import torch
from torch import Tensor

from engine.data.shuffle import Ints


def to_device(device: torch.device, array: Ints) -> Tensor:
    """A copy that the host doesn't wait for."""
    host = torch.from_numpy(array)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
