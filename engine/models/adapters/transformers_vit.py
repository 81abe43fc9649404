"""Adapt the vision transformer of transformers, with the head that finds an image's class."""

import numpy as np

from engine.data.colours import CHANNELS
from engine.errors import UsageError
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.stored import Names, Stored, stored
from engine.models.adapters.transformers_options import ACTIVATION_MODULES, encoder
from engine.models.architecture import Architecture
from engine.models.vit.config import ViTConfig


def vit(options: Options, name: str, sequence: int | None, dropout: float | None) -> ViTConfig:
    """Read a ViTConfig."""
    if sequence is not None:
        raise UsageError(f"{name} takes images, whose patches are its sequence: leave --seq out.")
    options.require("qkv_bias", True, default=True)
    options.require("num_channels", CHANNELS, default=CHANNELS)
    options.require_given("problem_type", "single_label_classification")  # the others have another loss
    options.forget("is_decoder", "encoder_stride", "pooler_output_size", "pooler_act", "pad_token_id")
    network = ViTConfig(
        name,
        image=options.take("image_size", 224),
        patch=options.take("patch_size", 16),
        classes=options.count("id2label", options.count("num_labels", 2)),
        **encoder(options, dropout, default_dropout=0.0),
    )
    options.finish()
    return network


def vit_stored(architecture: Architecture) -> Stored:
    """Say where a ViTForImageClassification keeps its parameters: patches as a convolution, tables without a layer."""
    assert isinstance(architecture, ViTConfig)
    h, rows, tables = architecture.hidden, np.arange(architecture.hidden), "vit.embeddings"
    names: Names = {
        "patches": f"{tables}.patch_embeddings.projection",
        "class_token": tables,
        "positions": f"{tables}.positions",
        "blocks": "vit.layers",
        "norm1": "layernorm_before",
        "attention.qkv": [(f"attention.{part}_proj", rows) for part in "qkv"],
        "attention.out": "attention.o_proj",
        "norm2": "layernorm_after",
        "feed_forward.fc1": "mlp.fc1",
        "feed_forward.fc2": "mlp.fc2",
        "norm": "vit.layernorm",
        "head": "classifier",
    }
    pixels = (h, CHANNELS, architecture.patch, architecture.patch)
    found = stored(architecture, names)
    found = found.kept_as("patches.weight", f"{tables}.patch_embeddings.projection.weight", pixels)
    found = found.kept_as("class_token.weight", f"{tables}.cls_token", (1, 1, h))
    return found.kept_as("positions.weight", f"{tables}.position_embeddings", (1, architecture.sequence, h))


VIT = Adapter(
    package="transformers",
    network="ViTForImageClassification",
    model_type="vit",
    attention="ViTAttention",
    modules=frozenset(
        {"ViTModel", "ViTEmbeddings", "ViTPatchEmbeddings", "ViTLayer", "ViTMLP", "ViTEncoder", *ACTIVATION_MODULES}
    ),
    read=vit,
    stored=vit_stored,
    prefix="vit.",
    parts_in_files={
        "vit.encoder.layer.": "vit.layers.",
        "attention.attention.query.": "attention.q_proj.",
        "attention.attention.key.": "attention.k_proj.",
        "attention.attention.value.": "attention.v_proj.",
        "attention.output.dense.": "attention.o_proj.",
        "intermediate.dense.": "mlp.fc1.",
        "output.dense.": "mlp.fc2.",
    },
)
