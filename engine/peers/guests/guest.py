"""What a peer in an environment of its own has to offer. Its libraries are loaded by its own Python only."""

from typing import Protocol

import torch
from torch import Tensor

from engine.peers.contest import Case
from engine.peers.layout import Layout
from engine.peers.peer import Values


class Guest(Protocol):
    """A model, its parallelism and its optimizer, on a device and in the precision of the case.

    data_rank: which share of the global batch is this rank's, known once it is built.
    """

    data_rank: int

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None: ...

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """One whole optimizer step on this rank's rows of the global batch.

        The loss is the mean over those rows; nan on a rank that doesn't know it. The gradient norm is the global one.
        """
