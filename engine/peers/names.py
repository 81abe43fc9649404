"""What names and layouts of other libraries have in common."""

from typing import Any

import torch
from torch import Tensor

from engine.models.adapters.stored import Stored
from engine.models.adapters.values import library_state
from engine.peers.comparison import Case
from engine.peers.peer import serial_model


def by_halves(rows: Tensor, head_size: int) -> Tensor:
    """Rows of heads whose rotary pairs are neighbours, as others have them: one in each half of a head."""
    return rows.unflatten(0, (-1, head_size // 2, 2)).transpose(1, 2).flatten(0, 2)


def renamed(case: Case, places: Stored, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The serial model's state under a library's names, whole."""
    serial = serial_model(case, device).state_dict()
    whole = library_state(places, {name: value for name, value in serial.items() if name in places.parts})
    return whole | {second: whole[first] for second, first in places.aliases.items()}


def replace_all(*replaced: tuple[Any, str, Any]) -> None:
    """Owners' attributes, by name, by others."""
    for owner, name, other in replaced:
        setattr(owner, name, other)
