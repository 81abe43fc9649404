"""AxoNN, whose algorithm is the engine's: its parallel layers in place of the serial model's linear ones.

This is what it calls expert mode: tensor ranks are its rows (G_intra_r), which split heads, the feed-forward's width
and the vocabulary; logits are gathered for the loss, norms and the residual stream are whole on each. Data ranks are
copies (G_data), or its depth (G_intra_d), which splits weights as FSDP does. Communication is overlapped by its own
options, but for reduce-scatters of what is recomputed, whose sums would be lost. Clipping is its own, by the norm over
all ranks. Not offered: its columns (G_intra_c), which a layout has no name for, its pipeline, which takes MPI, and its
easy mode, whose gradients of biases are wrong on rows and columns.
"""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from axonn import axonn
from axonn.intra_layer import (
    Gather,
    Linear,
    clip_grad_norm_,
    fully_connected,
    optimize_communication,
    overlap_communication,
    sync_gradients,
)
from torch import Tensor, nn

from engine.grid import TENSOR
from engine.models.serial import SerialModel
from engine.peers.comparison import Case, Unavailable
from engine.peers.known.tensor_parallel import regroup_parts
from engine.peers.layout import Layout
from engine.peers.peer import Tensors, replace_all, serial_model
from engine.peers.registry import choose_settings
from engine.peers.step import TrainingStep
from engine.placement import Placement


class AxoNN(TrainingStep):
    """Step on ranks in its order: tensor ranks are neighbours, then depth, then data.

    by_depth: data ranks split weights, too, which are gathered ahead of their use.
    """

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, by_depth: bool = False) -> None:
        if case.precision == "bf16" and device.type == "cpu":
            raise Unavailable("AxoNN's layers compute in bf16 on GPUs only: compare in fp32 or fp64.")
        if device.type == "cpu":
            without_gpu()
        self._overlapped = choose_settings("axonn", "optimize_communication", device.type)
        self._overlapped["overlap_reduce_scatter"] &= not case.checkpoint_activations
        self._overlapped["overlap_all_gather"] &= by_depth
        copies, depth = (1, layout.data) if by_depth else (layout.data, 1)
        own = layout.size if device.type == "cpu" else None
        axonn.init(G_data=copies, G_intra_r=layout.tensor, G_intra_d=depth, gpus_per_node=own)
        places = axonn.config.data_parallel_rank, axonn.config.intra_layer_depth_parallel_rank
        self.data_rank = places[1] if by_depth else places[0]
        model, placements = serial_model(case, "cpu"), case.model.placements()
        regroup_parts(model, placements, layout.tensor)
        put_layers(model, placements, device)
        model = model.to(device)
        flat = {id(module.weight) for module in model.modules() if isinstance(module, Linear)}
        self._matrices = [parameter.ndim > 1 or id(parameter) in flat for parameter in model.parameters()]
        super().__init__(case, model, device)

    def _adamw(self) -> torch.optim.Optimizer:
        # Its matrices are stored as vectors, and decay all the same.
        parameters = self._masters.parameters
        matrices = {id(one) for one, decays in zip(parameters, self._matrices, strict=True) if decays}
        return self._masters.adamw(self._case, parameters, decays=lambda one: id(one) in matrices)

    def _backward(self, batch: Tensors) -> Tensor:
        with optimize_communication(**self._overlapped, model_object_for_overlapping_allgathers=self._model):
            loss = super()._backward(batch)
        sync_gradients(self._model, mean=True, expert_mode=True)
        return loss

    def _clip(self) -> Tensor:
        return clip_grad_norm_(self._masters.parameters, self._case.optim.clip)


class _Gathered(nn.Module):
    """Head that gathers its rows' shares of the logits."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_BSH: Tensor) -> Tensor:
        return Gather.apply(self.layer(x_BSH), self.layer.outer_group)


def put_layers(model: SerialModel, placements: Mapping[str, Placement], device: torch.device) -> None:
    """Put its layers in place of the linear ones, with their weights. Of each pair the second is transposed."""
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, nn.Linear):
            continue
        second = layer is not model.head and placements[f"{name}.weight"].split[0] is not TENSOR
        theirs = Linear(
            layer.in_features, layer.out_features, bias=layer.bias is not None, transpose=second, expert_mode=True
        ).to(layer.weight.dtype)
        theirs.load_state_dict(layer.state_dict())
        theirs.forward = partial(theirs.forward, **choose_settings("axonn", "Linear", device.type))
        if theirs.bias is not None:
            theirs.bias.needs_gradient_sync = True  # else its biases' gradients aren't summed over depth
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, _Gathered(theirs) if layer is model.head else theirs)


def without_gpu() -> None:
    """Replace what it takes for granted of GPUs and of NCCL; nothing that it computes changes.

    set_device, synchronize, current_device, init_device: where it makes its tensors, and waits. new_group: each of its
    groups is one of NCCL. clear_handles: it drops what isn't done yet, as a GPU's streams would wait for it. dist: gloo
    writes into what is gathered when it is waited for, within autograd, which must know of it.
    """

    def group_of(ranks: list[int], **_: object) -> Any:
        return make_group(ranks=[int(rank) for rank in ranks])

    def wait() -> None:
        for handle in overlap_communication.handles:
            handle.wait()
        overlap_communication.handles = []

    def gather(out: Tensor, part: Tensor, **options: Any) -> Any:
        with torch.enable_grad():
            return dist.all_gather_into_tensor(out, part.detach(), **options)

    make_group = dist.new_group
    known = SimpleNamespace(get_world_size=dist.get_world_size, all_gather_into_tensor=gather)
    replace_all(
        (torch.cuda, "set_device", lambda *_: None),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (fully_connected.initialize_params.__wrapped__, "__defaults__", ("cpu",)),
        (dist, "new_group", group_of),
        (overlap_communication, "clear_handles", wait),
        (overlap_communication, "dist", known),
    )
