"""Llama, Qwen2 and Qwen3 of transformers keep query, key and value apart, and rotary pairs by halves of a head."""

from functools import partial

import numpy as np

from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.rope import rope
from engine.models.adapters.stored import Names, Stored, halves, stored
from engine.models.adapters.transformers_options import padding, sizes
from engine.models.architecture import Architecture
from engine.models.llama.config import LlamaConfig


def llama(
    options: Options, name: str, sequence: int | None, dropout: float | None, *, model_type: str = "llama"
) -> LlamaConfig:
    """Read a LlamaConfig, Qwen2Config or Qwen3Config."""
    blocks = sizes(options)
    full = ["full_attention"] * blocks["layers"]
    options.require("hidden_act", "silu", default="silu")
    options.require_off("attention_bias", "mlp_bias", "use_sliding_window", "rope_interleaved", "use_mrope")
    options.require("layer_types", full, default=full)
    options.forget("is_decoder", "sliding_window", "max_window_layers")
    if options.dropout([], ["attention_dropout"], 0.0, dropout):
        raise options.refusal(f"dropout {dropout}", "none")
    longest: int = options.take("max_position_embeddings", 2048)
    angles = rope(options)
    vocabulary: int = options.take("vocab_size")
    network = LlamaConfig(
        name,
        **blocks,
        kv_heads=options.take("num_key_value_heads", blocks["heads"]),
        vocabulary=vocabulary,
        padding=padding(options, vocabulary),
        sequence=sequence or longest,
        tied=options.take("tie_word_embeddings", False),
        rope_theta=angles.theta,
        rope_scaling=angles.scaling,
        norm_eps=options.positive("rms_norm_eps", 1e-6),
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
        head_features=options.take("head_dim", 128) if model_type == "qwen3" else options.given("head_dim", 1),
    )
    if angles.share != 1:
        raise options.refusal(f"partial_rotary_factor={angles.share}", "1")
    options.finish()
    return network


def llama_names(shape: LlamaConfig) -> Names:
    """Name the layers of a LlamaForCausalLM and of its kin."""
    size, ffn = shape.head_size, np.arange(shape.ffn)
    return {
        "tokens": "model.embed_tokens",
        "blocks": "model.layers",
        "norm1": "input_layernorm",
        "attention.qkv": [
            ("self_attn.q_proj", halves(shape.heads, size)),
            ("self_attn.k_proj", halves(shape.kv_heads, size)),
            ("self_attn.v_proj", np.arange(shape.keys)),
        ],
        "attention.norm_q": [("self_attn.q_norm", halves(1, size))],
        "attention.norm_k": [("self_attn.k_norm", halves(1, size))],
        "attention.out": "self_attn.o_proj",
        "norm2": "post_attention_layernorm",
        "feed_forward.gate_up": [("mlp.gate_proj", ffn), ("mlp.up_proj", ffn)],
        "feed_forward.down": "mlp.down_proj",
        "norm": "model.norm",
        "head": "lm_head",
    }


def llama_stored(architecture: Architecture) -> Stored:
    """Say where a LlamaForCausalLM and its kin keep their parameters."""
    assert isinstance(architecture, LlamaConfig)
    return stored(architecture, llama_names(architecture))


def _adapter(model_type: str, kind: str) -> Adapter:
    parts = ("Model", "DecoderLayer", "MLP", "RMSNorm", "RotaryEmbedding")
    return Adapter(
        package="transformers",
        network=f"{kind}ForCausalLM",
        model_type=model_type,
        attention=f"{kind}Attention",
        modules=frozenset({f"{kind}{part}" for part in parts} | {"SiLUActivation", "SiLU"}),
        read=partial(llama, model_type=model_type),
        stored=llama_stored,
        prefix="model.",
        constants=(".rotary_emb.inv_freq",),
    )


LLAMA, QWEN2, QWEN3 = _adapter("llama", "Llama"), _adapter("qwen2", "Qwen2"), _adapter("qwen3", "Qwen3")
