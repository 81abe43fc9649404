"""transformers makes its GPT-2 and Llama of the serial model's shapes; its caller says what versions differ in."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.readers import LLAMA3
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import UNSCALED_SEQUENCE, LlamaConfig
from engine.peers.comparison import Case
from engine.peers.names import renamed


def network(shape: Architecture, of_llama: Mapping[str, Any], of_gpt2: Mapping[str, Any]) -> Any:
    """Make one; None for a shape that they have none for. of_llama, of_gpt2: further options of the configuration."""
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
    """Say how its rotary positions are stretched, if they are."""
    return {"rope_type": "llama3", "factor": shape.rope_scaling} | LLAMA3 if shape.rope_scaling != 1 else {}


def load(model: Any, case: Case, device: torch.device | str) -> None:
    """Give it the serial model's weights, which are made on the device, and have it train as the case asks."""
    adapter = ADAPTERS["llama" if isinstance(case.model, LlamaConfig) else "gpt2"]
    model.load_state_dict(renamed(case, adapter.stored(case.model), device))
    to_train(model, case)


def to_train(model: Any, case: Case) -> None:
    """Have it train, with activations computed again where the case asks for it."""
    if case.checkpoint_activations:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
