"""Format in which gradients are summed along an axis of the grid, where none is asked for. No torch.

A ring adds one rank's part after the other and rounds each sum to the format in which it travels. Relative errors, in
the norm of 4,096 sums, against float64 (tests/engine/test_reduce_dtype.py makes the table): of parts that are
independent, as gradients of small batches nearly are, and of parts that agree but for a tenth.

    ranks     bf16, independent     bf16, agreeing     fp32, either
        8           0.4 %                0.3 %            6e-8
       64           1.0 %                1.3 %            2e-7
      256           1.9 %                7.0 %            3e-7
    1,024           3.8 %               60   %            6e-7

Independent parts err by some 2^-10 sqrt(1.5 G) over G ranks. Parts that agree fare worse from 64 ranks on: one more
than 256 is less than half of the sum's last place, and is lost. A tree, which NCCL may take for all-reduces between
nodes, errs less, but isn't known beforehand.

In fp16 a sum over ranks could overflow where no rank's part does, as the loss scale brings parts near to its end: it is
in fp32, unless fp16 is asked for, as in axonn-ipdps22 IV-B.
"""

FROM_RANKS = 64
"""Ranks of an axis from which a sum in bf16 errs by more than a hundredth, six times one rounding."""
WIDENED_FROM = {"bf16": FROM_RANKS, "fp16": 2}
"""Ranks of an axis from which sums are in fp32 instead of these."""


def reduce_dtype(precision: str, ranks: int, given: str | None = None) -> str:
    """Return the format for an axis: the one given, or that of the computation, or fp32 from WIDENED_FROM ranks on.

    "compute" is that of the computation on however many ranks. Along z and along data the same rule holds.
    """
    if given is not None:
        return precision if given == "compute" else given
    return "fp32" if ranks >= WIDENED_FROM.get(precision, ranks + 1) else precision
