"""litgpt's GPT is many networks: those like Llama and Qwen, and those like GPT-NeoX (Pythia), are read here."""

from collections.abc import Sequence

import numpy as np

from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.rope import LLAMA3, llama3
from engine.models.adapters.stored import Index, Stored, halves, stored
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig

NO_MATTER = ("hf_config", "vocab_size", "padding_multiple", "rotary_percentage", "sliding_window_indices")
"""These don't matter: of rotary_percentage rope_n_elem is made, of vocab_size padded_vocab_size."""
OFF = (
    *("post_attention_norm", "post_mlp_norm", "shared_attention_norm", "rope_interleave", "scale_embeddings"),
    *("lm_head_bias", "norm_topk_prob"),
)
FIXED: dict[str, object] = {
    "norm_1": True,
    "norm_2": True,
    "rope_condense_ratio": 1,
    "norm_qk_type": "default",
    "n_expert": 0,
    "n_expert_per_token": 0,
    "routed_scaling_factor": 1.0,
}
OTHER_NORMS = ("Gemma", "OLMo")
"""These words in a configuration's name make norms others."""
ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}


def litgpt(options: Options, name: str, sequence: int | None, dropout: float | None) -> Architecture:
    """Read a Config, which has no dropout."""
    options.require_off(*OFF)
    for option, value in FIXED.items():
        options.require(option, value, default=value)
    options.forget(*NO_MATTER)
    called = options.take("name", "")
    if any(word in called for word in OTHER_NORMS):
        raise options.refusal(f"name={called!r}", f"names without {' and '.join(OTHER_NORMS)}")
    like_llama = options.take("norm_class_name", "LayerNorm") == "RMSNorm"
    network = _llama(options, name, sequence) if like_llama else _neox(options, name, sequence)
    options.finish()
    return network


def _llama(options: Options, name: str, sequence: int | None) -> LlamaConfig:
    options.require("mlp_class_name", "LLaMAMLP", default="GptNeoxMLP")
    options.require("bias", False, default=True)
    options.require("parallel_residual", False, default=True)
    options.forget("gelu_approximate")
    size: int = options.take("head_size")
    options.require("rope_n_elem", size, default=None)
    longest: int = options.take("block_size")
    return LlamaConfig(
        name,
        layers=options.take("n_layer"),
        hidden=options.take("n_embd"),
        heads=options.take("n_head"),
        kv_heads=options.take("n_query_groups"),
        ffn=options.take("intermediate_size"),
        vocabulary=options.take("padded_vocab_size"),
        sequence=sequence or longest,
        rope_theta=options.positive("rope_base", 1e4),
        rope_scaling=_scaling(options),
        norm_eps=options.positive("norm_eps", 1e-5),
        qkv_bias=options.take("attn_bias", False),
        qk_norm=options.take("norm_qk", False),
        head_features=size,
    )


def _neox(options: Options, name: str, sequence: int | None) -> GPTConfig:
    options.require("mlp_class_name", "GptNeoxMLP", default="GptNeoxMLP")
    options.require("bias", True, default=True)
    options.require_off("attn_bias", "norm_qk")
    options.require("rope_adjustments", None, default=None)
    heads: int = options.take("n_head")
    hidden: int = options.take("n_embd")
    options.require("n_query_groups", heads, default=heads)
    options.require("head_size", hidden // heads, default=None)
    longest: int = options.take("block_size")
    return GPTConfig(
        name,
        layers=options.take("n_layer"),
        hidden=hidden,
        heads=heads,
        vocabulary=options.take("padded_vocab_size"),
        sequence=sequence or longest,
        ffn=options.take("intermediate_size"),
        norm_eps=options.positive("norm_eps", 1e-5),
        activation=options.one_of("gelu_approximate", ACTIVATIONS, "none"),
        rotary=options.take("rope_n_elem"),
        rope_theta=options.positive("rope_base", 1e4),
        parallel_residual=options.take("parallel_residual", True),
    )


def _scaling(options: Options) -> float:
    _, inner = options.within("rope_adjustments")
    known = {"original_max_seq_len" if "original" in name else name: value for name, value in LLAMA3.items()}
    found = llama3(inner, known) if inner else 1.0
    inner.finish()
    return found


def litgpt_stored(architecture: Architecture) -> Stored:
    """Say where a GPT keeps its parameters."""
    names: dict[str, str | Sequence[tuple[str, Index]]] = {
        "tokens": "transformer.wte",
        "blocks": "transformer.h",
        "norm1": "norm_1",
        "attention.out": "attn.proj",
        "norm2": "norm_2",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    }
    if isinstance(architecture, LlamaConfig):
        size, ffn = architecture.head_size, np.arange(architecture.ffn)
        fused = _fused(architecture.heads, architecture.kv_heads, size, size)
        names |= {"feed_forward.gate_up": [("mlp.fc_1", ffn), ("mlp.fc_2", ffn)], "feed_forward.down": "mlp.proj"}
        names |= {f"attention.norm_{one}": [(f"attn.norm_{one}", halves(1, size))] for one in "qk"}
    else:
        assert isinstance(architecture, GPTConfig)
        heads = architecture.heads
        fused = _fused(heads, heads, architecture.head_size, architecture.rotary_features)
        names |= {"feed_forward.fc1": "mlp.fc", "feed_forward.fc2": "mlp.proj"}
    return stored(architecture, names | {"attention.qkv": [("attn.qkv", fused)]})


def _fused(heads: int, keys: int, size: int, turned: int) -> Index:
    """Order the rows: all queries, then keys, then values."""
    first = heads * size
    key = first + halves(keys, size, turned)
    return np.concatenate([halves(heads, size, turned), key, first + keys * size + np.arange(keys * size)])


LITGPT = Adapter(
    package="litgpt",
    network="GPT",
    model_type="litgpt",
    attention="CausalSelfAttention",
    modules=frozenset({"Block", "LLaMAMLP", "GptNeoxMLP", "RMSNorm"}),
    read=litgpt,
    stored=litgpt_stored,
)
