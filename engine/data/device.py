"""A batch on its way to a device."""

import torch
from torch import Tensor

from engine.data.shuffle import Arrays


def to_device(device: torch.device, batch: Arrays) -> dict[str, Tensor]:
    """A copy that the host doesn't wait for."""
    host = {name: torch.from_numpy(array) for name, array in batch.items()}
    pinned = {name: tensor.pin_memory() for name, tensor in host.items()} if device.type == "cuda" else host
    return {name: tensor.to(device, non_blocking=True) for name, tensor in pinned.items()}
