"""Adapt BERT of transformers, with the head that finds masked tokens."""

import numpy as np

from engine.models.adapters.adapter import Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.stored import Names, Stored, stored
from engine.models.adapters.transformers_options import ACTIVATION_MODULES, encoder, padding
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.masked_token import SEGMENTS


def bert(options: Options, name: str, sequence: int | None, dropout: float | None) -> BertConfig:
    """Read a BertConfig."""
    options.require("position_embedding_type", "absolute", default="absolute")
    options.require("tie_word_embeddings", True, default=True)
    options.require_off("add_cross_attention", "is_decoder")  # a decoder would be causal
    options.require("type_vocab_size", SEGMENTS, default=SEGMENTS)
    positions: int = options.take("max_position_embeddings", 512)
    vocabulary: int = options.take("vocab_size")
    network = BertConfig(
        name,
        vocabulary=vocabulary,
        padding=padding(options, vocabulary, default=0),
        sequence=sequence or positions,
        positions=positions,
        **encoder(options, dropout, default_dropout=0.1),
    )
    options.finish()
    return network


def bert_stored(architecture: Architecture) -> Stored:
    """Say where a BertForMaskedLM keeps its parameters. The head's bias is a parameter beside it, too."""
    rows, head = np.arange(architecture.hidden), "cls.predictions"
    names: Names = {
        "tokens": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "segments": "bert.embeddings.token_type_embeddings",
        "norm": "bert.embeddings.LayerNorm",
        "blocks": "bert.encoder.layer",
        "attention.qkv": [(f"attention.self.{part}", rows) for part in ("query", "key", "value")],
        "attention.out": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "feed_forward.fc1": "intermediate.dense",
        "feed_forward.fc2": "output.dense",
        "norm2": "output.LayerNorm",
        "transform": f"{head}.transform.dense",
        "head_norm": f"{head}.transform.LayerNorm",
        "head": f"{head}.decoder",
    }
    found = stored(architecture, names).kept_as("head.bias", f"{head}.bias")
    return found.also_called(f"{head}.decoder.bias", f"{head}.bias")


BERT = Adapter(
    package="transformers",
    network="BertForMaskedLM",
    model_type="bert",
    attention="BertAttention",
    modules=frozenset(
        {
            *("BertModel", "BertEmbeddings", "BertEncoder", "BertLayer", "BertSelfAttention", "BertSelfOutput"),
            *("BertIntermediate", "BertOutput", "BertOnlyMLMHead", "BertLMPredictionHead"),
            *("BertPredictionHeadTransform", *ACTIVATION_MODULES),
        }
    ),
    read=bert,
    stored=bert_stored,
    prefix="bert.",
    parts_in_files={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    constants=(".embeddings.position_ids", "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
)
