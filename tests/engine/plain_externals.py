"""External peers that need no library but torch, and ones that go wrong."""

import os
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout
from engine.peers.peer import StepMetrics, Tensors, adamw, mean_divisor, serial_loss, serial_model


class PlainExternal:
    """torch's DDP. It writes to standard output, as libraries do."""

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        print("an external peer is here")  # noqa: T201
        assert torch.distributed.get_world_size() == layout.size == int(os.environ["WORLD_SIZE"])
        self.data_rank = torch.distributed.get_rank()
        self._case, self._model = case, serial_model(case, device)
        self._parallel = DistributedDataParallel(self._model)
        self._optimizer = adamw(case.optim, self._model.parameters())

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.ExternalPeer."""
        self._optimizer.zero_grad()
        loss = serial_loss(self._model, self._parallel, batch, mean_divisor(self._case, batch))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._case.optim.clip)
        self._optimizer.step()
        return StepMetrics(loss.item(), norm.item())


class Fails(PlainExternal):
    """The second rank, in its first step."""

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.ExternalPeer."""
        if self.data_rank == 1:
            raise ValueError("this can't\nbe computed")
        return super().step(batch)


class Hangs(PlainExternal):
    """After its warm-up."""

    done = 0

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.ExternalPeer."""
        self.done += 1
        if self.done > self._case.warmup:
            time.sleep(3600)
        return super().step(batch)


class Dies(PlainExternal):
    """At once."""

    def step(self, batch: Tensors) -> StepMetrics:
        """See peer.ExternalPeer."""
        os._exit(9)


class Lacks(PlainExternal):
    """What it needs."""

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        raise Unavailable("there is no such kernel")
