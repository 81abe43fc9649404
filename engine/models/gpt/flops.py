"""Floating-point operations of a GPT, counted as Narayanan et al. do (axonn-sc24 VI-C, axonn-ipdps22 Eq. 3).

For B sequences of s tokens, l layers, hidden size h and vocabulary V, a layer's forward pass is 24 B s h^2 (QKV,
projection and feed-forward; 8 B s h^2 + 4 B s h f where the feed-forward's width f is not 4 h) + 4 B s^2 h (scores and
values, the causal half that kernels skip included), and the logits are 2 B s h V. Backward costs twice the forward.
With full activation checkpointing each layer, but not the logits, runs forward once more:

    hardware flops  = 96 B s l h^2 (1 + s / 6h + V / 16 l h)     the papers' number, which they call model flops
    model flops     = 72 B s l h^2 (1 + s / 6h + V / 12 l h)     the same without the second forward

The logit term 6 B s h V is equal in both, so model flops / hardware flops is a little above the often quoted
0.75: 0.7515 for gpt-80b, 0.7573 for gpt-5b.

torch's FlopCounterMode over the serial model counts the model flops exactly. Of the hardware flops it misses the last
product of each block's second forward, 8 B s h^2 a layer: PyTorch stops a recomputation at the last activation that
the backward needs, and nothing needs the block's output.
"""

from engine.models.architecture import ForwardFlops
from engine.models.gpt.shape import GPTShape


def gpt_forward_flops(shape: GPTShape, sequences: int) -> ForwardFlops:
    """The equations above for so many sequences."""
    h, s, tokens = shape.hidden, shape.sequence, sequences * shape.sequence
    attention = 4 * tokens * s * h * shape.layers
    return ForwardFlops(
        blocks=(8 * h**2 + 4 * h * shape.wide) * tokens * shape.layers + attention,
        rest=2 * tokens * h * shape.vocabulary,
        repeated_over_y=attention,
    )
