"""Floating-point operations, counted as Narayanan et al. do (axonn-sc24 VI-C, axonn-ipdps22 Eq. 3): products only.

A product of m x k by k x n counts 2 m k n. For B sequences of s tokens, l layers, hidden size h, query width a (h,
unless a head's features are given), key and value width k = a kv_heads / heads, feed-forward width f and vocabulary V,
a layer's forward pass is

    4 B s h (a + k)           query, key and value, and the projection of attention: 2 B s h (a + 2k) + 2 B s a h
    4 B s^2 a                 scores and values of all query heads, the causal half that kernels skip included
    4 B s h f or 6 B s h f    a feed-forward of two products (GPT), or of three (SwiGLU)

and the logits are 2 B s h V. With k = a = h and f = 4 h that is GPT's 24 B s h^2 + 4 B s^2 h. Backward costs twice the
forward. With full activation checkpointing each layer, but not the logits, runs forward once more:

    hardware flops  = 96 B s l h^2 (1 + s / 6h + V / 16 l h)     the papers' number, which they call model flops
    model flops     = 72 B s l h^2 (1 + s / 6h + V / 12 l h)     the same without the second forward

The logit term 6 B s h V is equal in both, so model flops / hardware flops is a little above the often quoted
0.75: 0.7515 for gpt-80b, 0.7573 for gpt-5b.

torch's FlopCounterMode over the serial model counts the model flops exactly. Of the hardware flops it misses the last
product of each block's second forward, 8 B s h^2 a layer of GPT: PyTorch stops a recomputation at the last activation
that the backward needs, and nothing needs the block's output.

A convolution is a product of its pixels. For B images of S x S pixels, C channels at first and m C at last, and a step
of a U-Net from k channels, those that it takes included, to n channels at P pixels, the forward pass is

    2 B P (9 k n + 9 n^2 + k n) + 16 B C n    residual block, with k n for its skip only if k differs from n; the last
                                              term is the time step's, and half as much if that only shifts
    18 B P n^2                                convolution that halves or doubles images, P of what it gives
    8 B P n^2 + 4 B P^2 n                     attention behind either: query, key, value, projection; scores and values
    54 B S^2 C and 18 B S^2 m C c             first convolution, of 3 channels, and last, to c channels
    8 B C^2 and 32 B C^2                      first and second product of the time step

Backward costs twice that, but once for the first convolution and the first product of the time step, as neither images
nor waves have gradients. Each rank of y repeats 3 (4 B P^2 n), and each of x both convolutions outside of blocks.
"""

from collections.abc import Iterable
from math import prod

from engine.grid import SPLITTING_FEATURES, Grid
from engine.models.architecture import Architecture
from engine.models.network import Section
from engine.models.operations import Attention, Linear, Operation
from engine.tensor_mode import ALGORITHM_1, Side, TensorMode


def split_step_flops(model: Architecture, *, recomputed: int) -> tuple[int, list[int], int]:
    """Count the flops of a step of one sample: of all that comes before the blocks, of each block, and of all that
    comes after them. recomputed: blocks, the first ones, that run forward twice.
    """
    network, sequence = model.network(), model.sequence
    before, after = (sum(_both_ways(section, sequence) for section in some) for some in network.around)
    blocks: list[int] = []
    for section, again in network.run_twice(recomputed):
        if section.recomputed:
            once = _both_ways(section, sequence)
            blocks += again * [once + _forward(section, sequence)] + (section.repeat - again) * [once]
    return before, blocks, after


def _forward(section: Section, sequence: int) -> int:
    return _of(section, section.operations, sequence)


def _of(section: Section, operations: Iterable[Operation], sequence: int) -> int:
    return sum(operation.flops(section.tokens_of(operation, sequence)) for operation in operations)


def _both_ways(section: Section, sequence: int) -> int:
    """Count the backward, too. That of a product is two products of its size, and one where its input is data."""
    of_data = [linear for linear in section.of_kind(Linear) if linear.reads_data]
    return 3 * _forward(section, sequence) - _of(section, of_data, sequence)


def step_flops(model: Architecture, sequences: int, *, recomputed: int) -> int:
    """Count the flops of one step of the whole job. recomputed: blocks, the first ones, that run forward twice."""
    before, blocks, after = split_step_flops(model, recomputed=recomputed)
    return sequences * (before + sum(blocks) + after)


def hardware_flops(model: Architecture, sequences: int, *, recompute: bool) -> int:
    """Count the flops of one step of the whole job. recompute: with the second forward of all blocks."""
    return step_flops(model, sequences, recomputed=model.layers if recompute else 0)


def model_flops(model: Architecture, sequences: int) -> int:
    """Count the flops of one step of the whole job that the mathematics asks for: nothing recomputed."""
    return step_flops(model, sequences, recomputed=0)


def repeated_flops(
    model: Architecture, sequences: int, grid: Grid, *, recomputed: int, mode: TensorMode = ALGORITHM_1
) -> int:
    """Count the flops of one step of the whole job that ranks run on top of `step_flops`, and no utilisation
    counts.

    In Algorithm 1 all Gy ranks hold the same activations between the sum over y that ends a projection and the next
    product, so attention runs Gy times over; and so does a product before or after the blocks along an axis that splits
    nothing of it. With activations split as well nothing is repeated.
    """
    network, sequence = model.network(), model.sequence
    attention = sum(
        (3 * section.repeat + again) * _of(section, section.of_kind(Attention), sequence)
        for section, again in network.run_twice(recomputed)
        if section.recomputed
    )
    repeated = (mode.repeats(Side.INNER, grid) - 1) * sequences * attention
    for section in (section for some in network.around for section in some):
        for linear in section.of_kind(Linear):
            split = mode.split(linear.sides)
            times = prod(grid[axis] for axis in SPLITTING_FEATURES if axis not in split)
            of_one = _of(section, [linear], sequence) * (2 if linear.reads_data else 3)
            repeated += (times - 1) * sequences * of_one
    return repeated
