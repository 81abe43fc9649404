"""Shares of a library's tensors: the bits of what a whole network, renamed and cut, would have."""

from dataclasses import replace

import pytest
import torch
from external_cases import CASE, GPT, LLAMA
from torch import Tensor

from engine.errors import RunError
from engine.models.adapters.stored import Names, stored
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.parallel.initial import fill
from engine.peers import shards as module
from engine.peers.external import megatron_names, torchtitan
from engine.peers.peer import rename_weights
from engine.peers.shards import Shares

TIED = replace(GPT, tied=True)
UNLIKE = LlamaConfig("unlike", layers=3, hidden=48, heads=6, kv_heads=3, ffn=72, vocabulary=96, sequence=8)
SPLIT = {"word_embeddings": 0, "output_layer": 0, "linear_qkv": 0, "linear_fc1": 0, "linear_proj": 1, "linear_fc2": 1}
"""Dims along which Megatron-core's tensor ranks split."""


def split_dim(tensor: str, dims: int) -> int | None:
    """Return the dim along which Megatron-core splits a tensor; biases of products over ranks are whole on each."""
    layer = tensor.split(".")[-2]
    dim = SPLIT.get(layer)
    return dim if dim is None or dim < dims else None


def compare(shape: GPTConfig | LlamaConfig, names: Names, ranks: int, *, transposed: bool = False) -> int:
    """Hold every rank's share of every tensor to the whole of today; return the values that ranks have."""
    places = stored(shape, names, transposed_blocks=transposed)
    whole = rename_weights(replace(CASE, model=shape), places)
    made = Shares(shape, places, CASE.seed)
    count = 0
    for tensor, value in whole.items():
        dim = split_dim(tensor, value.dim()) if ranks > 1 else None
        for rank in range(ranks):
            cut = value if dim is None else value.chunk(ranks, dim)[rank]
            share = torch.full_like(cut, torch.nan, memory_format=torch.contiguous_format)
            if dim is None:
                made.fill(share, tensor)
            else:
                made.fill(share, tensor, dim, rank, ranks)
            assert torch.equal(share.view(torch.int32), cut.contiguous().view(torch.int32)), (tensor, rank)
            count += cut.numel()
    return count


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", [GPT, TIED, LLAMA, UNLIKE], ids=["gpt", "tied", "llama", "unlike"])
def test_a_share_has_the_bits_of_the_whole_that_is_renamed_and_cut(shape: GPTConfig | LlamaConfig, ranks: int) -> None:
    if ranks == 3:
        shape = replace(shape, hidden=48, heads=6, vocabulary=96, **({"kv_heads": 3} if shape is LLAMA else {}))
    count = compare(shape, megatron_names.names(shape, ranks), ranks)
    assert count >= shape.parameters


def test_a_share_of_another_librarys_order_or_of_columns_has_them_too() -> None:
    assert compare(LLAMA, torchtitan.names(LLAMA), 1) >= LLAMA.parameters
    assert compare(GPT, megatron_names.names(GPT, 1), 1, transposed=True) >= GPT.parameters


def test_a_rank_draws_what_it_keeps_and_no_more_at_once_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    monkeypatch.setattr(module, "CHUNK_BYTES", 256)
    monkeypatch.setattr(module, "fill", lambda part, *words: drawn.append(fill(part, *words)))
    count = compare(LLAMA, megatron_names.names(LLAMA, 2), 2)
    assert sum(values.numel() for values in drawn) == count
    assert max(4 * values.numel() for values in drawn if values.dim() == 1) <= 256
    assert all(4 * values.numel() <= 256 or len(values) == 1 for values in drawn)


def test_a_share_in_another_format_is_rounded_from_the_same_values() -> None:
    made = Shares(GPT, stored(GPT, megatron_names.names(GPT, 1)), CASE.seed)
    wide = torch.empty(GPT.vocabulary, GPT.hidden)
    narrow = torch.empty_like(wide, dtype=torch.bfloat16)
    for share in (wide, narrow):
        made.fill(share, "embedding.word_embeddings.weight")
    assert torch.equal(narrow, wide.bfloat16())


@pytest.mark.parametrize(
    ("tensor", "rows", "named"),
    [("output_layer.weight", 40, r"\[80, 32\].*\[64, 32\]"), ("output_layer.bias", 32, "nowhere")],
)
def test_a_tensor_that_is_stored_otherwise_is_refused(tensor: str, rows: int, named: str) -> None:
    """Such as a vocabulary that the library has padded."""
    made = Shares(GPT, stored(GPT, megatron_names.names(GPT, 2)), CASE.seed)
    with pytest.raises(RunError, match=named):
        made.fill(torch.empty(rows, GPT.hidden), tensor, 0, 1, 2)


def test_elements_without_initial_values_are_told() -> None:
    places = stored(GPT, megatron_names.names(GPT, 1))
    parts = {name: part for name, part in places.parts.items() if name != "tokens.weight"}
    made = Shares(GPT, replace(places, parts=parts), CASE.seed)
    with pytest.raises(RunError, match=f" 0 elements .* {GPT.vocabulary * GPT.hidden}"):
        made.fill(torch.empty(GPT.vocabulary, GPT.hidden), "embedding.word_embeddings.weight")
