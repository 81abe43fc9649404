"""DeepSpeed: the serial model under ZeRO, or cut into the stages of its pipeline, with its own optimizer loop.

Activations are split by nothing but the batch, and the vocabulary by nothing but the tensor ranks of DeepSpeed-3D.
Clipping is by the norm over all ranks. Where a rank keeps a part of the network, by ZeRO-3, stages or tensor ranks, it
makes that part alone: all are cut on the meta device, and their elements drawn afterwards.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # with PyTorch's compiler: else its first optimizer does
import torch
from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer, set_autotp_mode
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.runtime.zero.partition_parameters import PartitionedParamStatus
from torch import Tensor, nn

from engine.grid import TENSOR
from engine.models.serial import SerialModel
from engine.peers.comparison import Case
from engine.peers.external.deepspeed_start import with_half, without_building, without_copies
from engine.peers.layout import Layout
from engine.peers.peer import (
    StepMetrics,
    Tensors,
    accumulate,
    check_taken,
    cut_model,
    decay_groups,
    mean_cross_entropy,
    mean_divisor,
    micro_batches,
    serial_loss,
    serial_model,
)
from engine.peers.registry import choose_settings
from engine.peers.shards import initial_elements, initial_share, model_without_values, replace_parameters
from engine.placement import Placement
from engine.precision import Precision
from engine.training_record import HALF


class ZeRO:
    """ZeRO: stage 1 splits optimizer states, stage 2 gradients, too, stage 3 weights, too."""

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, stage: int) -> None:
        without_building()
        with_half(device)
        without_copies()
        self.data_rank = torch.distributed.get_rank()
        config = _config(case, layout, device, stage)
        self._case, self._parts = case, layout.micro_batches
        self._model = partitioned_model(case, device, config) if stage == 3 else serial_model(case, device)
        self._engine, *_ = deepspeed.initialize(
            model=self._model,
            model_parameters=decay_groups(case.optim, self._model.parameters(), decays=_is_matrix),
            config=config,
        )

    def list_shard(self) -> Iterator[Tensor]:
        """Yield the tensors of this rank's shard: see shards.Sharded."""
        return _list_shard(self._model, self._engine.optimizer)

    def step(self, batch: Tensors) -> StepMetrics:
        divisor = mean_divisor(self._case, batch) / self._parts  # it divides gradients by their number

        def train(part: Tensors, last: bool) -> Tensor:
            loss = serial_loss(self._model, self._engine, part, divisor)
            self._engine.backward(loss)
            self._engine.step()  # which it takes after the last of its gradient_accumulation_steps
            return loss

        loss = accumulate(micro_batches(batch, self._parts), train) / self._parts
        check_taken(self._case, taken=not self._engine.skipped_steps)
        return StepMetrics(loss.item(), float(self._engine.get_global_grad_norm()))


class Pipeline:
    """1F1B over stages that are cut by their parameters, with ZeRO-1.

    With tensor ranks, which are neighbours, it is the papers' DeepSpeed-3D; the layers that split are DeepSpeed's own.
    """

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        without_building()
        with_half(device)
        without_copies()
        deepspeed.init_distributed()
        model = model_without_values(case, _dtype(case))
        placements, topology = case.model.placements(), None
        if layout.tensor > 1:
            split_layers(model, placements, layout.tensor)
            topology = PipeModelDataParallelTopology(layout.pipeline, layout.tensor, layout.data)
        names = {parameter: name for name, parameter in model.named_parameters()}

        def make(parameter: nn.Parameter) -> Tensor:
            placement = placements[names[parameter]]
            cut = parameter.shape != placement.shape
            ranks, rank = (layout.tensor, torch.distributed.get_rank() % layout.tensor) if cut else (1, 0)
            return initial_share(placement, ranks, rank, case.seed, device).to(parameter.dtype)

        stages = _Stages(
            make,
            layers=cut_model(model),
            num_stages=layout.pipeline,
            topology=topology,
            loss_fn=mean_cross_entropy,
            partition_method="parameters",
        )
        self._case, self._parts = case, layout.micro_batches
        self._engine, *_ = deepspeed.initialize(
            model=stages,
            model_parameters=decay_groups(case.optim, stages.parameters()),
            config=_config(case, layout, device, 1),
        )
        self.data_rank = self._engine.grid.get_data_parallel_rank()

    def list_shard(self) -> Iterator[Tensor]:
        """Yield the tensors of this rank's shard: see shards.Sharded."""
        return _list_shard(self._engine.module, self._engine.optimizer)

    def step(self, batch: Tensors) -> StepMetrics:
        loss = self._engine.train_batch((one["tokens"], one["targets"]) for one in micro_batches(batch, self._parts))
        check_taken(self._case, taken=not self._engine.skipped_steps)
        return StepMetrics(loss.item(), float(self._engine.get_global_grad_norm() or math.nan))


class _Stages(PipelineModule):
    """Stages of layers on the meta device, of which a rank makes its own. make: returns a parameter's values."""

    def __init__(self, make: Callable[[nn.Parameter], Tensor], **words: Any) -> None:
        self._make = make
        super().__init__(**words)

    def _build(self) -> None:
        for layer in self._layer_specs[self._local_start : self._local_stop]:
            replace_parameters(layer, self._make)
        super()._build()


class _Partition(deepspeed.zero.Init):
    """ZeRO-3's partition of a network on the meta device: a rank makes its own elements of each parameter.

    zero.Init itself takes each parameter whole, from the first rank. values: returns some elements by their parameter.
    """

    def __init__(self, model: nn.Module, values: Callable[[nn.Parameter, range], Tensor], **words: Any) -> None:
        self._values = values
        super().__init__(model, **words)

    def _convert_to_zero_parameters(self, param_list: Iterable[Any]) -> None:
        for parameter in param_list:
            self._convert_to_deepspeed_param(parameter)
            own = -(-parameter.ds_numel // self.dp_world_size)
            first = min(self.rank * own, parameter.ds_numel)
            drawn = self._values(parameter, range(first, min(first + own, parameter.ds_numel)))
            shard: Any = torch.zeros(own, dtype=parameter.dtype, device=self.local_device)  # what is over stays 0
            shard[: len(drawn)].copy_(drawn)
            shard.ds_numel, shard.status, shard.final_location = own, PartitionedParamStatus.AVAILABLE, None
            parameter.ds_tensor, parameter.ds_numel_aligned = shard, own * self.dp_world_size
            parameter.partition()  # which finds that this is done and lets go of the whole


def partitioned_model(case: Case, device: torch.device, config: dict[str, Any]) -> SerialModel:
    """Make the serial model of which each rank has the elements that ZeRO-3 keeps there."""
    model, placements = model_without_values(case, _dtype(case)), case.model.placements()
    replace_parameters(model, lambda old: old.new_empty(1, device=device).expand(old.shape))  # a shape without memory
    names = {parameter: name for name, parameter in model.named_parameters()}

    def values(parameter: nn.Parameter, elements: range) -> Tensor:
        return initial_elements(placements[names[parameter]], elements, case.seed, device)

    _Partition(model, values, config_dict_or_path=config, dtype=_dtype(case))
    return model


def split_layers(model: SerialModel, placements: Mapping[str, Placement], tensor: int) -> None:
    """Replace every linear layer of a model on the meta device by one of DeepSpeed's with the shape of a rank's share;
    logits are gathered.
    """
    group, _ = torch.distributed.new_subgroups(tensor)
    set_autotp_mode(training=True)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            column = placements[f"{name}.weight"].split[0] is TENSOR
            kind, words = (LinearLayer, {"gather_output": layer is model.head}) if column else (LinearAllreduce, {})
            model.set_submodule(name, kind(layer, group, name=name, **words))


def _dtype(case: Case) -> torch.dtype:
    """Return the format of the weights, beside which DeepSpeed has masters in fp32."""
    precision = Precision.parse(case.precision)
    return precision.compute if case.precision in HALF else precision.master


def _is_matrix(parameter: nn.Parameter) -> bool:
    """Say whether a parameter decays, of which ZeRO-3 leaves nothing but the shape."""
    return len(getattr(parameter, "ds_shape", parameter.shape)) > 1


def _list_shard(model: nn.Module, optimizer: Any) -> Iterator[Tensor]:
    """Yield weights, masters, the gradients' flat buffer of ZeRO-3 and the moments that are there."""
    for parameter in model.parameters():
        yield getattr(parameter, "ds_tensor", parameter)
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        yield from getattr(optimizer, name, ())
    if hasattr(optimizer, "grad_partitions_flat_buffer"):
        yield optimizer.grad_partitions_flat_buffer
    for states in optimizer.optimizer.state.values():
        yield from (state for state in states.values() if isinstance(state, Tensor))


def _config(case: Case, layout: Layout, device: torch.device, stage: int) -> dict[str, Any]:
    optim = case.optim
    return {
        "train_micro_batch_size_per_gpu": case.batch.sequences // layout.data // layout.micro_batches,
        "gradient_accumulation_steps": layout.micro_batches,
        "gradient_clipping": optim.clip,
        "zero_optimization": {"stage": stage} | choose_settings("deepspeed", "zero_optimization", device.type),
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": case.precision == "bf16"},
        "fp16": {"enabled": case.precision == "fp16", "loss_scale": case.loss_scale},
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
