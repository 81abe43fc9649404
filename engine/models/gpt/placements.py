"""Where each parameter of the serial GPT lives."""

from engine.models.gpt.shape import GPTShape
from engine.models.layout import Layout
from engine.placement import Placement


def gpt_placements(shape: GPTShape) -> dict[str, Placement]:
    """By the parameter's name, in the model's order."""
    h, bias, centred = shape.hidden, shape.bias, shape.norm == "layernorm"
    layout = Layout(hidden=h, layers=shape.layers)
    layout.table("tokens.weight", shape.vocabulary)
    if shape.rotary is None:
        layout.table("positions.weight", shape.rows_of_positions, sharded=False)
    for i in range(shape.layers):
        block = f"blocks.{i}"
        layout.norm(f"{block}.norm1", bias=centred)
        layout.from_residual(f"{block}.attention.qkv", (h, h, h), bias=bias)
        layout.onto_residual(f"{block}.attention.out", h, bias=bias)
        layout.norm(f"{block}.norm2", bias=centred)
        layout.from_residual(f"{block}.feed_forward.fc1", (shape.wide,), bias=bias)
        layout.onto_residual(f"{block}.feed_forward.fc2", shape.wide, bias=bias)
    layout.norm("norm", bias=centred)
    if not shape.tied:
        layout.table("head.weight", shape.vocabulary)
    return layout.placements
