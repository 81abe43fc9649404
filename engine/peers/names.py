"""Names and layouts of other libraries have this in common."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.models.adapters.library import library_state
from engine.models.adapters.stored import Index, Stored, halves
from engine.peers.comparison import Case
from engine.peers.peer import serial_model


def grouped(heads: int, keys: int, size: int, *, halved: bool) -> Index:
    """List the rows of a fused projection that has of each key head its query heads, the key and the value.

    halved: whether rotary pairs lie in the halves of a head; else they are neighbours, as in the serial model.
    """
    rows = np.arange((heads + 2 * keys) * size).reshape(keys, -1, size)
    turned = rows[..., halves(1, size)] if halved else rows
    return np.concatenate([turned[:, :-2], turned[:, -2], rows[:, -1]], None)


def renamed(case: Case, places: Stored, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Give the whole state of the serial model under a library's names."""
    serial = serial_model(case, device).state_dict()
    whole = library_state(places, {name: value for name, value in serial.items() if name in places.parts})
    return whole | {second: whole[first] for second, first in places.aliases.items()}


def replace_all(*replaced: tuple[Any, str, Any]) -> None:
    """Replace attributes of owners, each given by owner, name and new value."""
    for owner, name, other in replaced:
        setattr(owner, name, other)
