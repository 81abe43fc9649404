"""Megatron-core: network, parallelism, schedule, the gradients' buffers and the optimizer are all its own.

The layers are its "local" ones, which need no Transformer Engine: attention is in parts, but on GPUs where that is
installed. Vocabulary, heads and feed-forward are split over tensor ranks, the residual stream too with its sequence
parallelism. Clipping is by the norm over all ranks. A rank makes its own shard only: its layers leave their memory as
it is, which shards.py then fills with the engine's initial values.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import layers
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker, model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from engine.grid import Grid
from engine.models.adapters.stored import stored
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.external.megatron_names import names
from engine.peers.layout import Layout
from engine.peers.peer import StepMetrics, Tensors, check_taken, micro_batches, replace_all
from engine.peers.registry import choose_settings
from engine.peers.shards import Shares
from engine.precision import Precision
from engine.training_record import HALF


class MegatronCore:
    """Peer on ranks in its order: tensor ranks are neighbours, then data, then pipeline.

    sequence_parallel: the residual stream and norms are split by positions over tensor ranks.
    """

    def __init__(self, case: Case, layout: Layout, device: torch.device, *, sequence_parallel: bool = False) -> None:
        if case.checkpoint_activations and device.type == "cpu":
            raise Unavailable("Megatron-core's recomputation keeps the state of a GPU's random numbers.")
        if sequence_parallel and case.model.sequence % layout.tensor:
            raise Unavailable(
                f"Megatron-core's sequence parallelism splits positions over tensor={layout.tensor}, which doesn't "
                f"divide a sequence of {case.model.sequence}: compare megatron-core."
            )
        if device.type == "cpu":
            without_gpu()
        self._case, self._layout = case, layout
        parallel_state.initialize_model_parallel(layout.tensor, layout.pipeline)
        if device.type == "cuda":
            model_parallel_cuda_manual_seed(case.seed)  # else its initialisation finds no random state in fork()
        self.data_rank = parallel_state.get_data_parallel_rank()
        config = _config(case, layout, device, sequence_parallel=sequence_parallel)
        model = _model(case, config, device).to(device)
        places = stored(case.model, names(case.model, layout.tensor))
        _fill(model, Shares(case.model, places, case.seed), layout)
        self._model = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(**_of_data_ranks("DistributedDataParallelConfig", layout, device)),
            Float16Module(config, model) if case.precision in HALF else model,
        )
        optim = case.optim
        self._optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=optim.learning_rate,
                weight_decay=optim.weight_decay,
                adam_beta1=optim.beta1,
                adam_beta2=optim.beta2,
                adam_eps=optim.eps,
                clip_grad=optim.clip,
                bf16=case.precision == "bf16",
                fp16=case.precision == "fp16",
                loss_scale=case.loss_scale if case.precision == "fp16" else None,
                **_of_data_ranks("OptimizerConfig", layout, device),
            ),
            [self._model],
        )
        if case.precision == "fp16":
            config.grad_scale_func = self._optimizer.scale_loss
        for group in self._optimizer.param_groups:
            group["weight_decay"] = optim.weight_decay * group["wd_mult"]  # as its scheduler does in every step
            group["fused"] = True  # of torch's AdamW, which it takes without Apex and Transformer Engine
        sequence = case.model.sequence
        self._positions_1S = torch.arange(sequence, device=device)[None]
        self._hidden_11SS = torch.ones(sequence, sequence, dtype=torch.bool, device=device).triu(1)[None, None]
        self._forward_backward = get_forward_backward_func()

    def list_shard(self) -> Iterator[Tensor]:
        """Yield the tensors of this rank's shard, masters where there are any: see shards.Sharded."""
        yield from self._model.parameters()
        yield from (buffer.grad_data for buffer in self._model.buffers)
        for group in self._optimizer.param_groups:
            yield from group["params"]

    def step(self, batch: Tensors) -> StepMetrics:
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        parts = micro_batches(batch, self._layout.micro_batches)
        losses = self._forward_backward(
            forward_step_func=self._forward,
            data_iterator=iter(parts),
            model=[self._model],
            num_microbatches=len(parts),
            seq_length=self._case.model.sequence,
            micro_batch_size=len(parts[0]["tokens"]),
            forward_only=False,
        )
        taken, norm, _ = self._optimizer.step()
        check_taken(self._case, taken=taken)
        loss = float(torch.stack([one["loss"] for one in losses]).mean()) if losses else float("nan")
        return StepMetrics(loss, float(norm))

    def _forward(
        self, batches: Iterator[Tensors], model: Any
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]]:
        batch = next(batches)
        positions_BS = self._positions_1S.expand_as(batch["tokens"])
        out = model(batch["tokens"], positions_BS, self._hidden_11SS, labels=batch["targets"])

        def loss(losses_BS: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            mean = losses_BS.mean()
            return mean, {"loss": mean.detach().clone()}  # it scales the mean in place

        return out, loss


def _of_data_ranks(section: str, layout: Layout, device: torch.device) -> dict[str, Any]:
    """Choose the settings of what data ranks do together; one alone does nothing of it."""
    return choose_settings("megatron-core", section, device.type) if layout.data > 1 else {}


def _config(case: Case, layout: Layout, device: torch.device, *, sequence_parallel: bool) -> TransformerConfig:
    shape, known = case.model, False
    options: dict[str, Any] = {"normalization": "LayerNorm", "activation_func": F.gelu}
    if isinstance(shape, LlamaConfig):
        options = {"normalization": "RMSNorm", "activation_func": F.silu, "gated_linear_unit": True}
        options |= {"num_query_groups": shape.kv_heads, "add_bias_linear": False}
        options |= {"ffn_hidden_size": shape.ffn, "layernorm_epsilon": shape.norm_eps}
        known = not (shape.qkv_bias or shape.qk_norm or shape.head_features)
    elif isinstance(shape, GPTConfig):
        known = shape.norm == "layernorm" and shape.activation == "gelu" and shape.positions is None
        known = known and shape.rotary is None and not shape.parallel_residual
        options |= {"add_bias_linear": shape.bias, "ffn_hidden_size": shape.wide, "layernorm_epsilon": shape.norm_eps}
    if not known:
        raise Unavailable(f"Megatron-core's adapter knows no network like {shape.name}.")
    fusions = choose_settings("megatron-core", "TransformerConfig", device.type)
    fusions["bias_activation_fusion"] &= isinstance(shape, LlamaConfig)  # its fused GeLU is tanh's approximation
    dtype = Precision.parse(case.precision).compute
    together = case.checkpoint_group(Grid())
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": together}
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        sequence_parallel=sequence_parallel,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=device.type == "cpu",
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=case.precision == "bf16",
        fp16=case.precision == "fp16",
        persist_layer_norm=False,
        finalize_model_grads_func=finalize_model_grads,
        **(recompute if together else {}),
        **options,
        **fusions,
    )


def _model(case: Case, config: TransformerConfig, device: torch.device) -> GPTModel:
    shape = case.model
    rope: dict[str, Any] = {"position_embedding_type": "learned_absolute"}
    if isinstance(shape, LlamaConfig):
        rope = {"position_embedding_type": "rope", "rotary_base": shape.rope_theta}
        rope |= {"rope_scaling": shape.rope_scaling != 1, "rope_scaling_factor": shape.rope_scaling}
    return GPTModel(
        config,
        _layers(config, device),
        vocab_size=shape.outputs,
        max_sequence_length=shape.sequence,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=bool(shape.ties),
        **rope,
    )


def _layers(config: TransformerConfig, device: torch.device) -> Any:
    """Return its layers, whose norms with sequence parallelism are Apex's or Transformer Engine's: hence _Norm."""
    layer = get_gpt_layer_local_spec(normalization=config.normalization)
    if choose_settings("megatron-core", "layers", device.type)["TEDotProductAttention"]:
        from megatron.core.extensions.transformer_engine import TEDotProductAttention

        layer.submodules.self_attention.submodules.core_attention = TEDotProductAttention
    if not config.sequence_parallel:
        return layer
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = _Norm
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config), _Norm)


class _Norm:
    """torch's norm, whose parameters say that a tensor rank's gradients are of its own positions, as theirs do."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float) -> nn.Module:  # type: ignore[misc]
        norm = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}[config.normalization](hidden_size, eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = True
        return norm


def _fill(model: GPTModel, shares: Shares, layout: Layout) -> None:
    """Give this rank's part of every parameter, whose attributes say how it is split, its initial values."""
    rank, stage = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank())
    before = stage * model.config.num_layers // layout.pipeline
    for name, parameter in model.named_parameters():
        words = name.split(".")
        if words[:2] == ["decoder", "layers"]:
            words[2] = str(int(words[2]) + before)
        tensor = ".".join(words)
        if getattr(parameter, "tensor_model_parallel", False):
            shares.fill(parameter, tensor, parameter.partition_dim, rank, layout.tensor)
        else:
            shares.fill(parameter, tensor)


def _leave(weight: Tensor) -> None:
    """Leave memory as it is, which is then filled: the library's initial values are drawn for nothing."""


def _note_split(
    weight: nn.Parameter,
    output_size: int,
    input_size: int,
    per_partition_size: int,
    partition_dim: int,
    init_method: Callable[[Tensor], None],
    stride: int = 1,
    **_: object,
) -> None:
    """Note how a weight is split, which its own does on processors beside drawing all of it on every rank."""
    layers.set_tensor_model_parallel_attributes(weight, True, partition_dim, stride)


def without_gpu() -> None:
    """Turn to the processor what it takes for granted of a GPU; nothing that it computes changes.

    current_device, device="cuda", Tensor.cuda, synchronize: where it makes its tensors, and waits. fork: random numbers
    of dropout, which is off, are a GPU's. Tensor.type: it makes masters of what has the name of a GPU's type. Clipping:
    it insists on tensors of GPUs; torch's own does the same. Initial weights: it would make each of them whole.
    """

    def here(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(make)
        def made(*args: Any, **options: Any) -> Tensor:
            if options.get("device") == "cuda":
                options["device"] = "cpu"
            return make(*args, **options)

        return made

    kind = torch.Tensor.type

    def as_on_gpu(tensor: Tensor, *args: Any, **options: Any) -> Any:
        name = kind(tensor, *args, **options)
        return name.replace("torch.", "torch.cuda.") if isinstance(name, str) else name

    def clip(parameters: list[Tensor], max_norm: float, total_norm: float, **_: object) -> None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, torch.tensor(total_norm))

    for name in ("zeros", "ones", "tensor", "empty", "arange"):
        setattr(torch, name, here(getattr(torch, name)))
    replace_all(
        (torch.cuda, "current_device", lambda: torch.device("cpu")),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.Tensor, "cuda", lambda self, *_, **__: self),
        (torch.Tensor, "type", as_on_gpu),
        (CudaRNGStatesTracker, "fork", lambda *_, **__: nullcontext()),
        (optimizer, "clip_grad_by_total_norm_fp32", clip),
        (layers, "_initialize_affine_weight_cpu", _note_split),
    )
