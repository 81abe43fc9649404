"""torchtitan's Llama with its own parallelism, losses, pipeline schedule and clipping, as its trainer calls them.

Vocabulary, heads and feed-forward are split over tensor ranks, the residual stream too with sequence parallelism;
weights over data ranks (FSDP2, which gathers a block's twice unless there is a pipeline). Every parameter is a DTensor
on one mesh ("full_dtensor"): its default backend takes a later PyTorch. Attention is torch's fused one, which takes no
compiler. Its context parallelism is not offered: this attention can't be split so.
"""

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from engine.models.adapters.stored import Names, stored
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout
from engine.peers.peer import Tensors, grouped_rows, micro_batches, rename_weights
from engine.peers.registry import choose_settings
from engine.peers.step import Masters, TrainingStep
from engine.precision import Precision

ANY = {"weight": nn.init.ones_, "bias": nn.init.zeros_}
"""Values of parameters before they are loaded."""


class TorchTitan(TrainingStep):
    """Step on ranks in its order: tensor ranks are neighbours, then data, then pipeline.

    sequence_parallel: the residual stream and norms are split by positions over tensor ranks, which is its default.
    """

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, sequence_parallel: bool = False) -> None:
        shape = checked(case, layout)
        without_triton()
        if device.type == "cpu":
            without_gpu()
        from torchtitan.components.loss import CrossEntropyLoss
        from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
        from torchtitan.distributed import ParallelDims, utils
        from torchtitan.distributed.activation_checkpoint import FullAC
        from torchtitan.distributed.full_dtensor import parallelize_inputs
        from torchtitan.models.llama3 import parallelize_llama, pipeline_llm
        from torchtitan.models.llama3.sharding import set_llama3_sharding_config

        self._pipeline, self._count = layout.pipeline > 1, layout.micro_batches
        share = case.batch.sequences // layout.data
        parallelism = ParallelismConfig(
            data_parallel_shard_degree=layout.data,
            tensor_parallel_degree=layout.tensor,
            pipeline_parallel_degree=layout.pipeline,
            enable_sequence_parallel=sequence_parallel,
            pipeline_parallel_schedule="1F1B",
            pipeline_parallel_microbatch_size=share // layout.micro_batches,
            pipeline_parallel_first_stage_less_layers=0,
            pipeline_parallel_last_stage_less_layers=0,
            spmd_backend="full_dtensor",
        )
        self._dims = ParallelDims.from_config(parallelism, dist.get_world_size())
        self._dims.build_mesh()
        self.data_rank = self._dims.get_mesh("batch").get_local_rank() if self._dims.dp_enabled else 0
        utils.set_spmd_backend("full_dtensor")
        config = _config(shape)
        set_llama3_sharding_config(config, enable_sp=sequence_parallel)
        with torch.device("meta"):
            model = config.build()
        compiler = CompileConfig(**choose_settings("torchtitan", "CompileConfig", device.type))
        self._sum = CrossEntropyLoss.Config(global_vocab_size=case.model.outputs).build(compile_config=compiler)
        precision = str(Precision.parse(case.precision).compute).removeprefix("torch.")
        options: dict[str, Any] = {
            "parallel_dims": self._dims,
            "parallelism": parallelism,
            "compile_config": compiler,
            "dump_folder": "",
            "training": TrainingConfig(
                local_batch_size=share,
                seq_len=case.model.sequence,
                mixed_precision_param=precision,
                disable_cuda_graphs=True,
            ),
            "ac_config": FullAC.Config() if case.checkpoint_activations else None,
        }
        self._first = self._last = True
        if self._pipeline:
            self._schedule, parts, self._first, self._last = pipeline_llm(
                model,
                device=device,
                model_config=config,
                parallelize_fn=parallelize_llama,
                loss_fn=self._sum,
                **options,
            )
        else:
            parts = [parallelize_llama(model, **options)]
        values = rename_weights(case, stored(case.model, names(shape)))
        for part in parts:
            _load(part, values, device)
        self._inputs, self._clip_all = parallelize_inputs, utils.clip_grad_norm_
        self._tokens = torch.tensor(case.batch.sequences * case.model.sequence, device=device)
        super().__init__(case, nn.ModuleList(parts), device, Masters(p for part in parts for p in part.parameters()))

    def _backward(self, batch: Tensors) -> Tensor:
        # Each rank's loss is a sum over its rows, divided by the tokens of all.
        losses: list[Tensor] = []
        if self._pipeline:
            tokens, targets, _ = self._inputs(self._dims, batch["tokens"], batch["targets"], {})
            self._schedule.step(
                *((tokens,) if self._first else ()),
                target=targets if self._last else None,
                losses=losses if self._last else None,
                loss_kwargs={"global_valid_tokens": self._tokens},
                return_outputs=False,
            )
            return torch.stack(losses).sum().detach() if self._last else torch.tensor(torch.nan)
        for part in micro_batches(batch, self._count):
            tokens, targets, _ = self._inputs(self._dims, part["tokens"], part["targets"], {})
            loss, _ = self._sum(self._model[0](tokens), targets, self._tokens)
            loss.backward()
            losses.append(loss.detach())
        return sum(losses[1:], losses[0])

    def _clip(self) -> Tensor:
        pipeline = self._dims.get_optional_mesh("pp")
        return self._clip_all(self._masters.parameters, self._case.optim.clip, foreach=True, pp_mesh=pipeline)


def checked(case: Case, layout: Layout) -> LlamaConfig:
    """Return the network's shape. Raises Unavailable for what torchtitan has nothing like."""
    shape = case.model
    assert isinstance(shape, LlamaConfig)
    if shape.qkv_bias or shape.qk_norm or shape.head_features:
        raise Unavailable(f"torchtitan's Llama has no network like {shape.name}.")
    if case.precision == "fp64":
        raise Unavailable("torchtitan trains in fp32 at most: compare in fp32 or bf16.")
    if shape.tied and layout.pipeline > 1:
        raise Unavailable("torchtitan keeps no tied table in a pipeline: compare a network that isn't tied.")
    return shape


def _config(shape: LlamaConfig) -> Any:
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
    from torchtitan.models.common.param_init import skip_param_init
    from torchtitan.models.llama3 import Llama3Model
    from torchtitan.models.llama3.model import Llama3TransformerBlock

    rope = ComplexRoPE.Config(
        dim=shape.head_size,
        max_seq_len=shape.sequence,
        theta=shape.rope_theta,
        scaling="none" if shape.rope_scaling == 1 else "llama",
        scaling_factor=shape.rope_scaling,
    )

    def norm() -> Any:
        return RMSNorm.Config(normalized_shape=shape.hidden, eps=shape.norm_eps, param_init=ANY)

    layers = [
        Llama3TransformerBlock.Config(
            attention_norm=norm(),
            ffn_norm=norm(),
            attention=make_gqa_config(
                dim=shape.hidden,
                n_heads=shape.heads,
                n_kv_heads=shape.kv_heads,
                wqkv_param_init=ANY,
                wo_param_init=ANY,
                inner_attention=ScaledDotProductAttention.Config(),
                fuse_qkv=True,
                rope=rope,
            ),
            feed_forward=make_ffn_config(
                dim=shape.hidden, hidden_dim=shape.ffn, w1_param_init=ANY, w2w3_param_init=ANY
            ),
        )
        for _ in range(shape.layers)
    ]
    table = {"weight": skip_param_init} if shape.tied else ANY
    return Llama3Model.Config(
        dim=shape.hidden,
        vocab_size=shape.outputs,
        enable_weight_tying=shape.tied,
        norm=norm(),
        layers=layers,
        tok_embeddings=Embedding.Config(num_embeddings=shape.outputs, embedding_dim=shape.hidden, param_init=table),
        lm_head=Linear.Config(in_features=shape.hidden, out_features=shape.outputs, param_init=ANY),
    )


def names(shape: LlamaConfig) -> Names:
    """Name its layers. Rotary pairs are neighbours, as the serial model has them."""
    fused, ffn = grouped_rows(shape.heads, shape.kv_heads, shape.head_size, halved=False), np.arange(shape.ffn)
    return {
        "tokens": "tok_embeddings",
        "blocks": "layers",
        "norm1": "attention_norm",
        "attention.qkv": [("attention.qkv_linear.wqkv", fused)],
        "attention.out": "attention.wo",
        "norm2": "ffn_norm",
        "feed_forward.gate_up": [("feed_forward.w1", ffn), ("feed_forward.w3", ffn)],
        "feed_forward.down": "feed_forward.w2",
        "norm": "norm",
        "head": "lm_head",
    }


@torch.no_grad()
def _load(part: Any, whole: Mapping[str, Tensor], device: torch.device) -> None:
    """Load this rank's part of every parameter of a model, or of a stage of its pipeline, made on the meta device."""
    part.to_empty(device=device)
    part.init_weights(buffer_device=None)
    part.train()
    for name, parameter in part.named_parameters():
        value = whole[name.replace("_checkpoint_wrapped_module.", "")].to(device)
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(value)
    if device.type == "cpu":
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor


def without_triton() -> None:
    """Spare its layers the kernels of mixtures of experts, which take Triton; there are no experts here."""
    kernels = ModuleType("torchtitan.distributed.minimal_async_ep.kernels")
    kernels.__getattr__ = lambda name: None  # type: ignore[method-assign]
    sys.modules.setdefault(kernels.__name__, kernels)


def without_gpu() -> None:
    """Keep it from taking "cuda" where PyTorch names no accelerator; nothing that it computes changes."""
    torch._utils._get_available_device_type = lambda: "cpu"
