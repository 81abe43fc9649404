"""Names of the network's layers in Megatron-core, whose own package is not needed here."""

from collections.abc import Sequence

import numpy as np

from engine.models.adapters.stored import Index, Names
from engine.models.architecture import Architecture
from engine.models.llama.config import LlamaConfig
from engine.peers.peer import grouped_rows


def names(shape: Architecture, tensor: int) -> Names:
    """Name its layers, ordered so that contiguous shares are those of tensor ranks."""
    keys = shape.kv_heads if isinstance(shape, LlamaConfig) else shape.heads
    fused = grouped_rows(shape.heads, keys, shape.hidden // shape.heads, halved=isinstance(shape, LlamaConfig))
    found: dict[str, str | Sequence[tuple[str, Index]]] = {
        "tokens": "embedding.word_embeddings",
        "positions": "embedding.position_embeddings",
        "blocks": "decoder.layers",
        "norm1": "input_layernorm",
        "attention.qkv": [("self_attention.linear_qkv", fused)],
        "attention.out": "self_attention.linear_proj",
        "norm2": "pre_mlp_layernorm",
        "feed_forward.fc1": "mlp.linear_fc1",
        "feed_forward.fc2": "mlp.linear_fc2",
        "feed_forward.down": "mlp.linear_fc2",
        "norm": "decoder.final_layernorm",
        "head": "output_layer",
    }
    if isinstance(shape, LlamaConfig):
        shares = np.arange(2 * shape.ffn).reshape(tensor, 2, -1)
        found["feed_forward.gate_up"] = [("mlp.linear_fc1", np.concatenate([shares[:, 0], shares[:, 1]], None))]
    return found
