"""Floating-point operations of one training step, counted as Narayanan et al. do (axonn-sc24 VI-C,
axonn-ipdps22 Eq. 3).

For B sequences of s tokens, l layers, hidden size h and vocabulary V, a multiplication of m x k by k x n
counting 2 m k n, a layer's forward pass is 24 B s h^2 (QKV, projection and feed-forward) + 4 B s^2 h (scores
and values, the causal half that kernels skip included), and the logits are 2 B s h V. Backward costs twice
the forward. With full activation checkpointing each layer, but not the logits, runs forward once more:

    hardware flops  = 96 B s l h^2 (1 + s / 6h + V / 16 l h)     the papers' number, which they call model
    flops model flops     = 72 B s l h^2 (1 + s / 6h + V / 12 l h)     the same without the second forward

The logit term 6 B s h V is equal in both, so model flops / hardware flops is a little above the often quoted
0.75: 0.7515 for gpt-80b, 0.7573 for gpt-5b. HFU divides the first by the peak, MFU the second.
"""

from engine.grid import Grid
from engine.models.gpt.config import GPTConfig


def layer_forward_flops(config: GPTConfig, batch: int) -> float:
    """Forward flops of all layers, without the logits, for a batch of so many sequences."""
    tokens = float(batch) * config.sequence
    return tokens * config.layers * 24 * config.hidden**2 + attention_forward_flops(config, batch)


def attention_forward_flops(config: GPTConfig, batch: int) -> float:
    """Forward flops of scores and values alone in all layers, part of `layer_forward_flops`."""
    return 4.0 * batch * config.sequence**2 * config.layers * config.hidden


def logit_forward_flops(config: GPTConfig, batch: int) -> float:
    """Forward flops of the last multiplication, by the vocabulary."""
    return 2.0 * batch * config.sequence * config.hidden * config.vocabulary


def hardware_flops(config: GPTConfig, batch: int, *, recompute: bool) -> float:
    """Flops of one step of the whole job; recompute: with the second forward of checkpointed layers."""
    passes = 4 if recompute else 3
    return passes * layer_forward_flops(config, batch) + 3 * logit_forward_flops(config, batch)


def model_flops(config: GPTConfig, batch: int) -> float:
    """Flops of one step of the whole job that the mathematics asks for: nothing recomputed."""
    return hardware_flops(config, batch, recompute=False)


def repeated_flops(config: GPTConfig, batch: int, grid: Grid, *, recompute: bool) -> float:
    """Flops of one step of the whole job that Algorithm 1 runs on top of `hardware_flops`.

    Between the sum over y that ends QKV and the next multiplication all Gy ranks hold the same activations,
    so attention runs Gy times over. Neither HFU nor MFU count this.
    """
    passes = 4 if recompute else 3
    return (grid.y - 1) * passes * attention_forward_flops(config, batch)


def utilisation(flops: float, time_s: float, devices: int, peak_flops_per_s: float) -> float:
    """The fraction of the devices' joint peak that these flops in this time are: HFU or MFU."""
    return flops / time_s / devices / peak_flops_per_s
