"""Where each parameter of the serial Llama lives."""

from engine.models.layout import Layout
from engine.models.llama.shape import LlamaShape
from engine.placement import Placement


def llama_placements(shape: LlamaShape) -> dict[str, Placement]:
    """By the parameter's name, in the model's order.

    Query, key and value heads are split on their own, and so are the gate and what it gates: each rank multiplies its
    own.
    """
    attended, keys, ffn = shape.attended, shape.keys, shape.ffn
    layout = Layout(hidden=shape.hidden, layers=shape.layers)
    layout.table("tokens.weight", shape.vocabulary)
    for i in range(shape.layers):
        block = f"blocks.{i}"
        layout.norm(f"{block}.norm1", bias=False)
        layout.from_residual(f"{block}.attention.qkv", (attended, keys, keys), bias=shape.qkv_bias)
        if shape.qk_norm:
            layout.head_norm(f"{block}.attention.norm_q", shape.head_size)
            layout.head_norm(f"{block}.attention.norm_k", shape.head_size)
        layout.onto_residual(f"{block}.attention.out", attended, bias=False)
        layout.norm(f"{block}.norm2", bias=False)
        layout.from_residual(f"{block}.feed_forward.gate_up", (ffn, ffn), bias=False)
        layout.onto_residual(f"{block}.feed_forward.down", ffn, bias=False)
    layout.norm("norm", bias=False)
    if not shape.tied:
        layout.table("head.weight", shape.vocabulary)
    return layout.placements
