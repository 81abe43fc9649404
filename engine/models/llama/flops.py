"""Floating-point operations of a Llama, by the rule of Narayanan et al. (axonn-sc24 VI-C): matrix products only.

For B sequences of s tokens, l layers, hidden size h, query width a (h, unless a head's features are given), key and
value width k = a kv_heads / heads, feed-forward width f and vocabulary V, a layer's forward pass is

    4 B s h (a + k)     query, key and value, and the projection of attention: 2 B s h (a + 2k) + 2 B s a h
    4 B s^2 a           scores and values of all query heads, the causal half that kernels skip included
    6 B s h f           gate, up and down of SwiGLU

and the logits are 2 B s h V. With k = a = h and 6 f = 16 h that is GPT's 24 B s h^2 + 4 B s^2 h.

torch's FlopCounterMode over the serial model's forward and backward counts three times this exactly; see gpt/flops.py
for what it misses of a recomputation.
"""

from engine.models.architecture import ForwardFlops
from engine.models.llama.shape import LlamaShape


def llama_forward_flops(shape: LlamaShape, sequences: int) -> ForwardFlops:
    """The equations above for so many sequences."""
    h, a, k, s, tokens = shape.hidden, shape.attended, shape.keys, shape.sequence, sequences * shape.sequence
    attention = 4 * tokens * s * a * shape.layers
    return ForwardFlops(
        blocks=(4 * h * (a + k) + 6 * h * shape.ffn) * tokens * shape.layers + attention,
        rest=2 * tokens * h * shape.vocabulary,
        repeated_over_y=attention,
    )
