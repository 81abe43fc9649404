"""litgpt's GPT through Lightning's Fabric, on one rank or on several by its ddp.

Fabric's FSDP, which litgpt's own pretraining takes on several devices, is for GPUs only, and so not offered.
Vocabulary and activations are whole on each rank; the loss is its own, in chunks of tokens. It knows rotary positions
only: of a network that learns them, a table is added to its tokens.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from lightning import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy
from litgpt import GPT, Config
from litgpt.utils import chunked_cross_entropy
from torch import Tensor, nn

from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.readers import LITGPT_LLAMA3
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout
from engine.peers.peer import Tensors, rename_weights, serial_model
from engine.peers.registry import choose_settings
from engine.peers.step import TrainingStep

PRECISIONS = ("fp32", "bf16")


class LitGPT(TrainingStep):
    """Step on data ranks."""

    def __init__(self, case: Case, layout: Layout, device: torch.device) -> None:
        if case.precision not in PRECISIONS:
            raise Unavailable("litgpt computes parts of a network in fp32 at most: compare in fp32 or bf16.")
        precision: Any = (
            "bf16-mixed" if case.precision == "bf16" and case.autocast else "32-true"
        )  # which casts nothing
        here = min(layout.data, torch.cuda.device_count()) if device.type == "cuda" else layout.data
        options = choose_settings("litgpt", "DDPStrategy", device.type)
        options["static_graph"] &= layout.micro_batches == 1
        self._fabric = Fabric(
            accelerator=device.type,
            devices=here,
            num_nodes=layout.data // here,
            precision=precision,
            strategy=DDPStrategy(**options) if layout.data > 1 else "auto",
            plugins=[TorchElasticEnvironment()],
        )
        self._fabric.launch()
        self.data_rank = dist.get_rank()
        model = GPT(_config(case))
        _load(model, case)
        model.to(self._fabric.device)  # before it has masters
        super().__init__(case, model, device)
        self._model, self._optimizer = self._fabric.setup(self._model, self._optimizer)

    def _around(self, last: bool) -> AbstractContextManager[object]:
        return self._fabric.no_backward_sync(self._model, enabled=not last)

    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        mean: Tensor = chunked_cross_entropy(self._model(batch["tokens"]), batch["targets"])
        return mean * (batch["targets"].numel() / divisor)

    def _differentiate(self, loss: Tensor) -> None:
        self._fabric.backward(loss)

    def _clip(self) -> Tensor | float:
        return self._fabric.clip_gradients(self._model, self._optimizer, max_norm=self._case.optim.clip)


def _config(case: Case) -> Config:
    shape = case.model
    if not isinstance(shape, GPTConfig | LlamaConfig):
        raise Unavailable(f"litgpt has no network like {shape.name}.")
    options: dict[str, Any] = {
        "block_size": shape.sequence,
        "n_layer": shape.layers,
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "vocab_size": shape.vocabulary,
        "padded_vocab_size": shape.vocabulary,
        "norm_eps": shape.norm_eps,
        "rope_base": shape.rope_theta,
    }
    if isinstance(shape, LlamaConfig):
        options |= {
            "norm_class_name": "RMSNorm",
            "mlp_class_name": "LLaMAMLP",
            "bias": False,
            "parallel_residual": False,
            "n_query_groups": shape.kv_heads,
            "intermediate_size": shape.ffn,
            "head_size": shape.head_size,
            "rotary_percentage": 1.0,
            "attn_bias": shape.qkv_bias,
            "norm_qk": shape.qk_norm,
        }
        if shape.rope_scaling != 1:
            options["rope_adjustments"] = {"factor": shape.rope_scaling} | LITGPT_LLAMA3
        return Config(**options)
    if shape.norm != "layernorm" or not shape.bias:
        raise Unavailable(f"litgpt has no network like {shape.name}: its GPT takes LayerNorm and biases.")
    return Config(
        norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP",
        bias=True,
        intermediate_size=shape.wide,
        parallel_residual=shape.parallel_residual,
        rotary_percentage=shape.rotary_features / shape.head_size,
        gelu_approximate="tanh" if shape.activation == "gelu_tanh" else "none",
        **options,
    )


def _load(model: GPT, case: Case) -> None:
    """Load the serial model's weights under its names; of learnt positions, a table that it didn't have."""
    shape, learnt = case.model, None
    if isinstance(shape, GPTConfig) and shape.rotary is None:
        learnt = serial_model(case, "cpu").state_dict().get("positions.weight")
        shape = replace(shape, rotary=2)  # the network without a table: of one pair no row moves
    model.load_state_dict(rename_weights(case, ADAPTERS["litgpt"].stored(shape)))
    if shape.ties:
        model.lm_head.weight = model.transformer.wte.weight
    if learnt is not None:
        model.positions = nn.Embedding.from_pretrained(learnt, freeze=False)
        model.transformer.wte.register_forward_hook(_add_positions(model.positions))


def _add_positions(table: nn.Embedding) -> Any:
    def add(_: nn.Module, tokens: tuple[Tensor, ...], rows_BSH: Tensor) -> Tensor:
        return rows_BSH + table(torch.arange(rows_BSH.shape[1], device=rows_BSH.device))

    return add
