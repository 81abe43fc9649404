"""Send a batch to a device."""

import torch
from torch import Tensor

from engine.data.shuffle import Arrays


def to_device(device: torch.device, batch: Arrays) -> dict[str, Tensor]:
    """Copy a tensor to the device without the host waiting for that."""
    host = {name: torch.from_numpy(array) for name, array in batch.items()}
    pinned = {name: tensor.pin_memory() for name, tensor in host.items()} if device.type == "cuda" else host
    return {name: tensor.to(device, non_blocking=True) for name, tensor in pinned.items()}
