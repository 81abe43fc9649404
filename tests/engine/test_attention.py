"""Attention of queries that are fewer than their keys."""

import pytest
import torch

from engine.layers.attention import Attention


@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_of_more_keys_the_last_are_at_the_queries_own_positions(causal: bool, kv_heads: int, queries: int) -> None:
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 8, 5, dtype=torch.double, generator=random) for n in (4, kv_heads, kv_heads))
    whole, last = Attention(causal=causal)(q, k, v), Attention(causal=causal)(q[:, :, -queries:], k, v)
    torch.testing.assert_close(last, whole[:, -queries:], rtol=0, atol=1e-12)
