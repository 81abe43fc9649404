"""External peer that needs no library but torch, and may go wrong."""

import os
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout
from engine.peers.peer import StepMetrics, Tensors, adamw, mean_divisor, serial_loss, serial_model


class PlainExternal:
    """torch's DDP, which writes to standard output, as libraries do.

    fault: fails (the second rank, in its first step), hangs (after its warm-up), dies (in its first step) or lacks
    (what it needs).
    """

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, fault: str = "") -> None:
        if fault == "lacks":
            raise Unavailable("there is no such kernel")
        print("an external peer is here")  # noqa: T201
        assert torch.distributed.get_world_size() == layout.size == int(os.environ["WORLD_SIZE"])
        self.data_rank = torch.distributed.get_rank()
        self._case, self._model = case, serial_model(case, device)
        self._parallel = DistributedDataParallel(self._model)
        self._optimizer = adamw(case.optim, self._model.parameters())
        self._fault, self._steps = fault, 0

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.ExternalPeer."""
        self._steps += 1
        if self._fault == "fails" and self.data_rank == 1:
            raise ValueError("this can't\nbe computed")
        if self._fault == "hangs" and self._steps > self._case.warmup:
            time.sleep(3600)
        if self._fault == "dies":
            os._exit(9)
        self._optimizer.zero_grad()
        loss = serial_loss(self._model, self._parallel, batch, mean_divisor(self._case, batch))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._case.optim.clip)
        self._optimizer.step()
        return StepMetrics(loss.item(), norm.item())
