"""Configurations of transformers have these options in common."""

from typing import Any

from engine.models.adapters.options import Options

ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATION_MODULES = {"GELUActivation", "NewGELUActivation", "PytorchGELUTanh", "GELUTanh"}
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
}


def sizes(options: Options) -> dict[str, Any]:
    """Read a network's sizes, by the engine's names of them. All but GPT-2 name them so."""
    options.require_off("is_encoder_decoder")
    found: dict[str, int] = {own: options.take(name) for own, name in SIZES.items()}
    return found


def padding(options: Options, vocabulary: int, default: int | None = None) -> int | None:
    """Read the token whose row of the table learns nothing where it stands: nn.Embedding's padding_idx."""
    if options.says_none("pad_token_id"):
        return None
    token = options.given("pad_token_id", 0)
    token = default if token is None else token
    if token is not None and not -vocabulary <= token < vocabulary:
        raise options.refusal(f"pad_token_id={token}", f"tokens of its vocabulary of {vocabulary}")
    return None if token is None else token % vocabulary


def encoder(options: Options, dropout: float | None, *, default_dropout: float) -> dict[str, Any]:
    """Read what BERT and ViT say of their blocks, by the engine's names. dropout: what to take instead of theirs."""
    return sizes(options) | {
        "norm_eps": options.positive("layer_norm_eps", 1e-12),
        "activation": options.one_of("hidden_act", ACTIVATIONS, "gelu"),
        "dropout": options.dropout(["hidden_dropout_prob"], ["attention_probs_dropout_prob"], default_dropout, dropout),
    }
