"""GPT-NeoX of transformers keeps a head's query, key and value together; positions turn part of it, by halves."""

from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.rope import rope
from engine.models.adapters.stored import Names, Stored, halves, stored
from engine.models.adapters.transformers_options import ACTIVATION_MODULES, ACTIVATIONS, sizes
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig


def neox(options: Options, name: str, sequence: int | None, dropout: float | None) -> GPTConfig:
    """Read a GPTNeoXConfig."""
    options.require("attention_bias", True, default=True)
    options.forget("is_decoder", "pad_token_id")
    blocks = sizes(options)
    longest: int = options.take("max_position_embeddings", 2048)
    angles = rope(options, theta="rotary_emb_base", share="rotary_pct", default_share=0.25)
    options.require("rope_theta", angles.theta, default=angles.theta)  # late version 4 wrote these two once more
    options.require("partial_rotary_factor", angles.share, default=angles.share)
    if angles.scaling != 1:
        raise options.refusal("rotary positions of rope_type llama3", "the default kind")
    network = GPTConfig(
        name,
        **blocks,
        vocabulary=options.take("vocab_size"),
        sequence=sequence or longest,
        tied=options.take("tie_word_embeddings", False),
        norm_eps=options.positive("layer_norm_eps", 1e-5),
        activation=options.one_of("hidden_act", ACTIVATIONS, "gelu"),
        rotary=int(blocks["hidden"] // blocks["heads"] * angles.share),
        rope_theta=angles.theta,
        parallel_residual=options.take("use_parallel_residual", True),
        dropout=options.dropout(["hidden_dropout"], ["attention_dropout"], 0.0, dropout),
    )
    options.finish()
    return network


def neox_names(shape: GPTConfig) -> Names:
    """Name the layers of a GPTNeoXForCausalLM."""
    size, path = shape.head_size, "attention.query_key_value"
    turned = halves(shape.heads, size, shape.rotary, apart=3 * size)
    straight = halves(shape.heads, size, 0, apart=3 * size)
    return {
        "tokens": "gpt_neox.embed_in",
        "blocks": "gpt_neox.layers",
        "norm1": "input_layernorm",
        "attention.qkv": [(path, turned), (path, turned + size), (path, straight + 2 * size)],
        "attention.out": "attention.dense",
        "norm2": "post_attention_layernorm",
        "feed_forward.fc1": "mlp.dense_h_to_4h",
        "feed_forward.fc2": "mlp.dense_4h_to_h",
        "norm": "gpt_neox.final_layer_norm",
        "head": "lm_head",
    }


def neox_stored(architecture: Architecture) -> Stored:
    """Say where a GPTNeoXForCausalLM keeps its parameters."""
    assert isinstance(architecture, GPTConfig)
    return stored(architecture, neox_names(architecture))


NEOX = Adapter(
    package="transformers",
    network="GPTNeoXForCausalLM",
    model_type="gpt_neox",
    attention="GPTNeoXAttention",
    modules=frozenset({"GPTNeoXModel", "GPTNeoXLayer", "GPTNeoXMLP", "GPTNeoXRotaryEmbedding", *ACTIVATION_MODULES}),
    read=neox,
    stored=neox_stored,
    prefix="gpt_neox.",
    in_files={"embed_out.weight": "lm_head.weight"},
    constants=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
)
