"""torch.distributed.pipelining: the serial model, cut into equal stages, one or two a rank, under its schedules.

Vocabulary and activations are whole on each rank. Every stage holds its own part of the network only, and clips by the
norm over all of them.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from engine.peers.comparison import Case
from engine.peers.layout import Layout
from engine.peers.peer import Tensors, autocast, check_torch, cut_model, mean_cross_entropy, serial_model
from engine.peers.step import TrainingStep


class Pipelining(TrainingStep):
    """Step of a pipeline. schedule: the name of its class. chunks: stages of each rank."""

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, schedule: str, chunks: int) -> None:
        if device.type == "cpu":  # what a stage tells the next one of shapes gloo took for another message
            check_torch("torch.distributed.pipelining on processors", "2.10")
        self.data_rank = 0
        rank, ranks = dist.get_rank(), layout.pipeline
        count = ranks * chunks
        assert case.model.layers % count == 0
        layers, a_stage = cut_model(serial_model(case, device)), case.model.layers // count
        places = range(rank, count, ranks)
        parts = [
            nn.Sequential(
                *(layers[:1] if place == 0 else ()),
                *layers[1 + place * a_stage : 1 + (place + 1) * a_stage],
                *(layers[-1:] if place == count - 1 else ()),
            )
            for place in places
        ]
        self._first, self._last = rank == 0, rank == ranks - 1
        super().__init__(case, nn.ModuleList(parts), device)
        stages = [PipelineStage(part, place, count, device) for part, place in zip(parts, places, strict=True)]
        self._schedule = getattr(schedules, schedule)(
            stages if chunks > 1 else stages[0], layout.micro_batches, loss_fn=mean_cross_entropy
        )

    def _backward(self, batch: Tensors) -> Tensor:
        losses: list[Tensor] = []
        with autocast(self._case, self._device):
            self._schedule.step(
                *((batch["tokens"],) if self._first else ()),
                **({"target": batch["targets"], "losses": losses} if self._last else {}),
            )
        return torch.stack(losses).mean() if self._last else torch.tensor(torch.nan)

    def _clip(self) -> Tensor:
        parameters = self._masters.parameters
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]) ** 2
        dist.all_reduce(norm)
        norm = norm.sqrt()
        nn.utils.clip_grads_with_norm_(parameters, self._case.optim.clip, norm)
        return norm
