"""Shards of the serial model that peers are built of have the values of the whole one, and nothing of the rest."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
from external_cases import GPT, LLAMA
from torch import Tensor, nn
from waiting import LONG_S

from engine.batch import Batch
from engine.models.architecture import Architecture
from engine.parallel.initial import initialise_serial
from engine.peers.comparison import Case
from engine.peers.shards import count_bytes, initial_elements, initial_share, model_without_values, replace_parameters

CPU = torch.device("cpu")
SEED = 3


def whole_values(shape: Architecture) -> dict[str, Tensor]:
    return dict(initialise_serial(shape, SEED, dtype=torch.float32).named_parameters())


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_elements_and_shares_have_the_values_of_the_whole(shape: Architecture) -> None:
    """Elements in three parts that end within rows; shares as a library cuts them, of each part of a fused one."""
    whole, placements = whole_values(shape), shape.placements()
    for name, values in whole.items():
        placement, count = placements[name], values.numel()
        bounds = [0, count // 3, count // 2, count]
        parts = [range(low, high) for low, high in pairwise(bounds)]
        drawn = [initial_elements(placement, part, SEED, CPU) for part in [*parts, range(0)]]
        assert torch.equal(torch.cat(drawn), values.flatten()), name
        for dim, axis in enumerate(placement.split):
            if axis is None or axis.value != "x":
                continue
            sizes = placement.parts.get(dim, (placement.shape[dim],))
            for rank in range(2):
                expected = torch.cat([part.chunk(2, dim)[rank] for part in values.split(list(sizes), dim)], dim)
                assert torch.equal(initial_share(placement, 2, rank, SEED, CPU), expected), name


def test_a_model_without_values_takes_them_parameter_by_parameter() -> None:
    """Attributes that a library has given a parameter stay, and a tied one stays one."""
    shape = type(GPT)("tied", layers=1, hidden=16, heads=2, vocabulary=32, sequence=8, tied=True)
    case = Case(shape, Batch(2), checkpoint_every=1)
    model: Any = model_without_values(case, torch.bfloat16)
    assert model.recomputed_together == 1
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    model.tokens.weight.split_by = "rows"
    replace_parameters(model, lambda old: torch.ones(old.shape, dtype=old.dtype))
    assert model.head.weight is model.tokens.weight
    assert isinstance(model.head.weight, nn.Parameter)
    assert model.tokens.weight.split_by == "rows"
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert count_bytes([model.head.weight, model.tokens.weight, model.tokens.weight[3]]) == 2 * 32 * 16


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells VmHWM")
def test_the_most_memory_grows_by_what_is_touched_and_never_falls() -> None:
    """In a process of its own, as this one may have had more before."""
    script = (
        "import mmap\n"
        "from engine.peers.host_memory import peak_resident_bytes\n"
        "before = peak_resident_bytes()\n"
        "with mmap.mmap(-1, 100 << 20) as memory:\n"
        "    untouched = peak_resident_bytes() - before\n"
        "    memory.write(bytes(50 << 20))\n"
        "print(untouched >> 20, peak_resident_bytes() - before >> 20)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONG_S, check=True)
    untouched, touched = map(int, done.stdout.split())
    assert untouched < 10
    assert 45 < touched < 60, "of 50 MiB that are written"
