"""GPT-2 of transformers has biases everywhere, learnt positions, matrices of blocks stored as [k, n]."""

from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.stored import Stored, stored
from engine.models.adapters.transformers_options import ACTIVATION_MODULES, ACTIVATIONS
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig

NAMES = {
    "tokens": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks": "transformer.h",
    "norm1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm2": "ln_2",
    "feed_forward.fc1": "mlp.c_fc",
    "feed_forward.fc2": "mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}


def gpt2(options: Options, name: str, sequence: int | None, dropout: float | None) -> GPTConfig:
    """Read a GPT2Config."""
    options.require("scale_attn_weights", True, default=True)
    options.require_off("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    options.require_off("add_cross_attention", "is_encoder_decoder")
    options.forget("n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    options.forget("summary_first_dropout", "is_decoder", "pad_token_id")
    positions: int = options.take("n_positions")
    network = GPTConfig(
        name,
        layers=options.take("n_layer"),
        hidden=options.take("n_embd"),
        heads=options.take("n_head"),
        vocabulary=options.take("vocab_size"),
        sequence=sequence or positions,
        positions=positions,
        ffn=options.given("n_inner", 1),
        tied=options.take("tie_word_embeddings", True),
        norm_eps=options.positive("layer_norm_epsilon", 1e-5),
        activation=options.one_of("activation_function", ACTIVATIONS, "gelu_new"),
        dropout=options.dropout(["embd_pdrop", "resid_pdrop"], ["attn_pdrop"], 0.1, dropout),
    )
    options.finish()
    return network


def gpt2_stored(architecture: Architecture) -> Stored:
    """Say where a GPT2LMHeadModel keeps its parameters."""
    return stored(architecture, NAMES, transposed_blocks=True)


GPT2 = Adapter(
    package="transformers",
    network="GPT2LMHeadModel",
    model_type="gpt2",
    attention="GPT2Attention",
    modules=frozenset({"GPT2Model", "GPT2Block", "GPT2MLP", "Conv1D", *ACTIVATION_MODULES}),
    read=gpt2,
    stored=gpt2_stored,
    prefix="transformer.",
    constants=(".attn.bias", ".attn.masked_bias"),
)
