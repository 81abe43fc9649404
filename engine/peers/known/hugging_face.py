"""Hugging Face's transformers: their GPT-2 and Llama, of the serial model's shapes, on one rank.

Nothing is downloaded: the weights are those of the serial model under other names. Attention is torch's fused one
(sdpa); bf16 is throughout, or by autocast.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.readers import LLAMA3
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import UNSCALED_SEQUENCE, LlamaConfig
from engine.peers.comparison import Case, Unavailable
from engine.peers.peer import Tensors, autocast, mean_cross_entropy, rename_weights
from engine.peers.registry import choose_settings
from engine.peers.step import TrainingStep

try:
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM
except ImportError:
    raise Unavailable("transformers is not installed here: pip install '.[peers]'.") from None


class TransformersStep(TrainingStep):
    """Step of a network of transformers."""

    def _loss(self, batch: Tensors, divisor: float | Tensor) -> Tensor:
        with autocast(self._case, self._device):
            logits_BSV = self._model(batch["tokens"], use_cache=False).logits
        return mean_cross_entropy(logits_BSV, batch["targets"]) * (batch["targets"].numel() / divisor)


class HuggingFace(TransformersStep):
    """Network of transformers on one device."""

    def __init__(self, case: Case, comm: Comm) -> None:
        check_precision(case)
        with torch.device(comm.device):
            model = build(case, comm.device.type)
        load(model, case, comm.device)
        super().__init__(case, model, comm.device)


def check_precision(case: Case) -> None:
    """Raise Unavailable for a precision in which they don't compute everything."""
    if case.precision == "fp64":
        raise Unavailable("transformers computes parts of a network in fp32 at most: compare in fp32 or bf16.")


def build(case: Case, device: str) -> Any:
    """Make their network of the case's shape. Raises Unavailable for a shape that they have no network for."""
    shape, options = case.model, choose_settings("transformers", "from_config", device)
    of_llama: dict[str, Any] = {}
    if isinstance(shape, LlamaConfig):
        rope = {"rope_type": "default", "rope_theta": shape.rope_theta} | scaling(shape)
        of_llama = {"rope_parameters": rope, "head_dim": shape.head_size}
    model = make_network(shape, options | of_llama, options)
    if model is None:
        raise Unavailable(f"transformers has no network like {shape.name}: its GPT-2 takes LayerNorm and biases.")
    return model


def make_network(shape: Architecture, of_llama: Mapping[str, Any], of_gpt2: Mapping[str, Any]) -> Any:
    """Make their network of a shape, or None. of_llama, of_gpt2: options of its configuration, in which versions of
    transformers differ.
    """
    common: dict[str, Any] = {"tie_word_embeddings": bool(shape.ties), "use_cache": False}
    common |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "vocab_size": shape.outputs}
    if isinstance(shape, LlamaConfig) and not (shape.qkv_bias or shape.qk_norm):
        # Nothing but a warning follows from it.
        longest = max(shape.sequence, int(UNSCALED_SEQUENCE * shape.rope_scaling))
        return LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=shape.hidden,
                intermediate_size=shape.ffn,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.kv_heads,
                rms_norm_eps=shape.norm_eps,
                max_position_embeddings=longest,
                **common,
                **of_llama,
            )
        )
    learnt = isinstance(shape, GPTConfig) and shape.rotary is None and not shape.parallel_residual
    if isinstance(shape, GPTConfig) and learnt and shape.norm == "layernorm" and shape.bias:
        return GPT2LMHeadModel(
            GPT2Config(
                n_positions=shape.rows_of_positions,
                n_embd=shape.hidden,
                n_layer=shape.layers,
                n_head=shape.heads,
                n_inner=shape.wide,
                layer_norm_epsilon=shape.norm_eps,
                activation_function="gelu" if shape.activation == "gelu" else "gelu_new",
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                **common,
                **of_gpt2,
            )
        )
    return None


def scaling(shape: LlamaConfig) -> dict[str, Any]:
    """Return the options of stretched rotary positions, if a shape has them."""
    return {"rope_type": "llama3", "factor": shape.rope_scaling} | LLAMA3 if shape.rope_scaling != 1 else {}


def load(model: Any, case: Case, device: torch.device | str) -> None:
    """Load the serial model's weights, which are made on the device, and make the network train."""
    adapter = ADAPTERS["llama" if isinstance(case.model, LlamaConfig) else "gpt2"]
    model.load_state_dict(rename_weights(case, adapter.stored(case.model), device))
    start_training(model, case)


def start_training(model: Any, case: Case) -> None:
    """Make a network train, with activations computed again where the case asks for it."""
    if case.checkpoint_activations:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
