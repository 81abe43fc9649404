"""Choose how much of the gradient one all-reduce over model replicas sums, where that isn't given. No torch."""

LEAST_BYTES = 8e6
"""Buckets of this size hide best on few ranks: smaller ones cost calls, and larger ones end late."""
HOP_S = 1.4e-5
"""A message between nodes has this latency, as NCCL has it for large ones (Simple, its tuning.cc)."""
LINK_BYTES_PER_S = 25e9
"""A network that isn't known is taken to be so fast: one 200 Gbit/s interface a device."""


def bucket_bytes(ranks: int, link_bytes_per_s: float | None = None, devices_per_node: int = 1) -> float:
    """Give the bytes of a bucket that is summed over so many ranks.

    A ring all-reduce of n bytes over G ranks whose links carry B bytes/s takes 2 (G - 1) (n / (G B) + L) with a latency
    of L a hop (axonn-sc24 Eq. 3 has its first term). At n = 4 G B L a fifth of it is latency: 1.4 MB a rank, where
    Megatron-Core takes a million parameters a rank. link_bytes_per_s: of a node, which its devices share.
    """
    share = link_bytes_per_s / devices_per_node if link_bytes_per_s else LINK_BYTES_PER_S
    return max(LEAST_BYTES, 4 * ranks * share * HOP_S)
