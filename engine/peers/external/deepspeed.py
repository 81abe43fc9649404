"""DeepSpeed: the serial model under ZeRO, or cut into the stages of its pipeline, with its own optimizer loop.

Activations are split by nothing but the batch, and the vocabulary by nothing but the tensor ranks of DeepSpeed-3D.
Clipping is by the norm over all ranks.
"""

import math
import sys
from typing import Any

import deepspeed
import torch
from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer, set_autotp_mode
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from engine.models.serial import SerialModel
from engine.peers.comparison import Case
from engine.peers.known.tensor_parallel import regroup_parts
from engine.peers.layout import Layout
from engine.peers.peer import (
    StepMetrics,
    Tensors,
    accumulate,
    cut_model,
    decay_groups,
    mean_cross_entropy,
    mean_divisor,
    micro_batches,
    serial_loss,
    serial_model,
)
from engine.peers.registry import choose_settings
from engine.placement import NORMAL


class ZeRO:
    """ZeRO: stage 1 splits optimizer states, stage 2 gradients, too, stage 3 weights, too."""

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, stage: int) -> None:
        without_building()
        self.data_rank = torch.distributed.get_rank()
        self._case, self._parts, self._model = case, layout.micro_batches, serial_model(case, device)
        config = _config(case, layout, device, stage)
        self._engine, *_ = deepspeed.initialize(
            model=self._model, model_parameters=decay_groups(case.optim, self._model.parameters()), config=config
        )

    def step(self, batch: Tensors) -> StepMetrics:
        divisor = mean_divisor(self._case, batch) / self._parts  # it divides gradients by their number

        def train(part: Tensors, last: bool) -> Tensor:
            loss = serial_loss(self._model, self._engine, part, divisor)
            self._engine.backward(loss)
            self._engine.step()  # which it takes after the last of its gradient_accumulation_steps
            return loss

        loss = accumulate(micro_batches(batch, self._parts), train) / self._parts
        return StepMetrics(loss.item(), float(self._engine.get_global_grad_norm()))


class Pipeline:
    """1F1B over stages that are cut by their parameters, with ZeRO-1.

    With tensor ranks, which are neighbours, it is the papers' DeepSpeed-3D; the layers that split are DeepSpeed's own.
    """

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        without_building()
        deepspeed.init_distributed()
        model = serial_model(case, device)
        topology = None
        if layout.tensor > 1:
            split_layers(model, case, layout.tensor)
            topology = PipeModelDataParallelTopology(layout.pipeline, layout.tensor, layout.data)
        stages = PipelineModule(
            layers=cut_model(model),
            num_stages=layout.pipeline,
            topology=topology,
            loss_fn=mean_cross_entropy,
            partition_method="parameters",
        )
        self._parts = layout.micro_batches
        self._engine, *_ = deepspeed.initialize(
            model=stages,
            model_parameters=decay_groups(case.optim, stages.parameters()),
            config=_config(case, layout, device, 1),
        )
        self.data_rank = self._engine.grid.get_data_parallel_rank()

    def step(self, batch: Tensors) -> StepMetrics:
        loss = self._engine.train_batch((one["tokens"], one["targets"]) for one in micro_batches(batch, self._parts))
        return StepMetrics(loss.item(), float(self._engine.get_global_grad_norm() or math.nan))


def without_building() -> None:
    """Keep it from compiling a sum by shared memory when it starts on processors, for inference only, in a folder that
    all its environments share: it takes minutes beside other work, and a rank that is ended in it leaves a lock for
    which the next ones wait without end.
    """
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # not .torch itself


def split_layers(model: SerialModel, case: Case, tensor: int) -> None:
    """Replace every linear layer by one of DeepSpeed's with this rank's share; logits are gathered."""
    placements = case.model.placements()
    regroup_parts(model, placements, tensor)
    group, _ = torch.distributed.new_subgroups(tensor)
    set_autotp_mode(training=True)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            column = placements[f"{name}.weight"].split == NORMAL
            kind, words = (LinearLayer, {"gather_output": layer is model.head}) if column else (LinearAllreduce, {})
            model.set_submodule(name, kind(layer, group, name=name, **words))


def _config(case: Case, layout: Layout, device: torch.device, stage: int) -> dict[str, Any]:
    optim = case.optim
    return {
        "train_micro_batch_size_per_gpu": case.batch.sequences // layout.data // layout.micro_batches,
        "gradient_accumulation_steps": layout.micro_batches,
        "gradient_clipping": optim.clip,
        "zero_optimization": {"stage": stage} | choose_settings("deepspeed", "zero_optimization", device.type),
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": case.precision == "bf16"},
        "optimizer": {
            "type": "AdamW",
            "params": {
                "torch_adam": True,
                "fused": True,
                "lr": optim.learning_rate,
                "betas": [optim.beta1, optim.beta2],
                "eps": optim.eps,
                "weight_decay": optim.weight_decay,
            },
        },
    }
