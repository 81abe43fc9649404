"""Colossal-AI: transformers' Llama and GPT-2, sharded by its HybridParallelPlugin, which clips and steps, too.

Vocabulary, heads and feed-forward are split over tensor ranks, the residual stream is whole on each; the loss is its
own, over the split vocabulary. A pipeline is 1F1B. GPT-2's attention is transformers' eager one, as its forward hands
torch's fused one no causal mask. Its sequence parallelism isn't offered: in some of its modes gradients are left
unsummed; nor is ZeRO, which takes no fp32.
"""

import math
from contextlib import nullcontext
from typing import Any

import colossalai.booster.plugin.hybrid_parallel_plugin as hybrid
import colossalai.shardformer.modeling.gpt2 as their_gpt2
import colossalai.shardformer.modeling.llama as their_llama
import torch
import torch.distributed as dist
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.booster import Booster
from colossalai.device.device_mesh import DeviceMesh
from colossalai.shardformer.layer.loss import cross_entropy_1d
from colossalai.tensor.d_tensor.api import is_customized_distributed_tensor
from torch import Tensor

from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.known.hugging_face import load, make_network, scaling
from engine.peers.layout import Layout
from engine.peers.peer import StepMetrics, Tensors, accumulate, adamw, mean_cross_entropy, micro_batches, replace_all
from engine.peers.registry import choose_settings
from engine.precision import at_least_fp32


class ColossalAI:
    """Peer on ranks in its order: tensor ranks are neighbours, then pipeline, then data."""

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        if case.precision == "fp64" or (case.precision != "fp32" and device.type == "cpu"):
            raise Unavailable("Colossal-AI is compared in fp32, and on GPUs in bf16, too.")
        if device.type == "cpu":
            without_gpu()
        with_norms()
        model = _model(case)
        load(model, case, "cpu")
        plugin = hybrid.HybridParallelPlugin(
            tp_size=layout.tensor,
            pp_size=layout.pipeline,
            zero_stage=0,
            precision=case.precision,
            max_norm=case.optim.clip,
            num_microbatches=layout.micro_batches if layout.pipeline > 1 else None,
            enable_all_optimization=False,
            parallel_output=True,
            make_vocab_size_divisible_by=1,
            **choose_settings("colossalai", "HybridParallelPlugin", device.type),
        )
        self.data_rank = dist.get_rank(plugin.dp_group)
        with_loss(case.model.outputs, plugin.tp_group)
        self._parts = layout.micro_batches
        self._booster, self._pipeline = Booster(plugin=plugin), layout.pipeline > 1
        model = model.to(device)
        optimizer = adamw(case.optim, model.parameters())
        # A Llama that it doesn't cut keeps transformers' forward, which shifts the targets; its GPT-2's fails without.
        self._targets = layout.tensor * layout.pipeline > 1 or isinstance(case.model, GPTConfig)
        self._model, self._optimizer, *_ = self._booster.boost(model, optimizer, criterion=_its_loss)

    def step(self, batch: Tensors) -> StepMetrics:
        self._optimizer.zero_grad()
        if self._pipeline:
            found = self._booster.execute_pipeline(
                iter([self._named(batch)]), self._model, _its_loss, self._optimizer, return_loss=True
            )["loss"]
            loss = math.nan if found is None else found.item()
        else:
            loss = self._accumulated(batch)
        self._optimizer.step()
        return StepMetrics(loss, float(self._optimizer.get_grad_norm() or math.nan))

    def _named(self, batch: Tensors) -> dict[str, Tensor]:
        tokens_BS = batch["tokens"]
        named = {"input_ids": tokens_BS, "attention_mask": torch.ones_like(tokens_BS)}
        return named | ({"labels": batch["targets"]} if self._targets else {})

    def _accumulated(self, batch: Tensors) -> float:
        """Return the mean loss of all micro-batches, of which only the last sums gradients over data ranks."""

        def train(part: Tensors, last: bool) -> Tensor:
            with nullcontext() if last else self._booster.no_sync(self._model, self._optimizer):
                outputs = self._model(**self._named(part))
                mean = outputs.loss if self._targets else mean_cross_entropy(outputs.logits, part["targets"])
                loss: Tensor = mean / self._parts
                self._booster.backward(loss, self._optimizer)
            return loss

        return accumulate(micro_batches(batch, self._parts), train).item()


def _its_loss(outputs: Any, _: object) -> Tensor:
    return outputs.loss


def _model(case: Case) -> Any:
    """Make transformers' network of the case's shape, of before version 5. Raises Unavailable where it has none."""
    shape = case.model
    of_llama: dict[str, Any] = {}
    if isinstance(shape, LlamaConfig):
        of_llama = {"rope_theta": shape.rope_theta, "rope_scaling": scaling(shape) or None}
    model = None
    if not getattr(shape, "head_features", None):
        model = make_network(shape, {"attn_implementation": "sdpa"} | of_llama, {"attn_implementation": "eager"})
    if model is None:
        raise Unavailable(f"transformers has no network like {shape.name} that Colossal-AI shards.")
    return model


def with_loss(vocabulary: int, tensor_ranks: dist.ProcessGroup) -> None:
    """Put the mean over all positions in place of its models' own, which shift targets and leave the last one out."""

    def mean(labels: Tensor, logits: Tensor, *others: object, **options: object) -> Tensor:
        if logits.shape[-1] == vocabulary:
            return mean_cross_entropy(logits, labels)
        logits_MV = at_least_fp32(logits).flatten(0, 1)
        return cross_entropy_1d(
            logits_MV, labels.flatten(), process_group=tensor_ranks, vocab_size=vocabulary, dtype=logits_MV.dtype
        )

    their_gpt2.dist_cross_entropy = their_llama.dist_cross_entropy = mean


def with_norms() -> None:
    """Make it know GPT-2's fused projections, shards of another class, whose norms it takes for those of copies."""
    before = hybrid.is_distributed_tensor
    hybrid.is_distributed_tensor = lambda value: before(value) or is_customized_distributed_tensor(value)


def without_gpu() -> None:
    """Replace what it takes for granted of a GPU; nothing that it computes changes.

    Random numbers, of dropout, which is off: it hands torch a device that torch doesn't take, and can't be seeded.
    set_device: in each of GPT-2's forwards. is_hccl_available: asked of every PyTorch, only Ascend's has it.
    _DIST_BACKEND: it finds a device by the name of its back end.
    """
    DeviceMesh._DIST_BACKEND["cpu"] = dist.get_backend()
    replace_all(
        (CpuAccelerator, "get_rng_state", lambda self, *_: torch.get_rng_state()),
        (CpuAccelerator, "manual_seed", lambda self, seed: torch.manual_seed(seed)),
        (torch.cuda, "set_device", lambda *_: None),
        (dist, "is_hccl_available", lambda: False),
    )
