"""Costs of a layer besides its products: bytes that are read and written, and operators that a host dispatches.

Counted of traces in bf16 on the meta device, where gradients of weights are cast and added, which a GPU's products do
themselves.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from dry_plans import dry_plan

from engine.batch import Batch
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.simulator.events import Attention, Mark, MatrixProduct, Sweep
from engine.tracing.step import trace

HIDDEN, SEQUENCES, SEQUENCE, VOCABULARY = 256, 64, 512, 512
"""Sizes with so many tokens that what the weights cost is little beside the activations."""
SHAPE = {"layers": 2, "hidden": HIDDEN, "heads": 8, "vocabulary": VOCABULARY, "sequence": SEQUENCE}
MODELS = {"gpt": GPTConfig("a", **SHAPE), "llama": LlamaConfig("b", **SHAPE, kv_heads=8, ffn=4 * HIDDEN)}  # type: ignore[arg-type]
PASSES = ("forward", "backward")

LAYER: Mapping[tuple[str, str], tuple[tuple[float, int], tuple[float, int]]] = {
    ("gpt", "1x1x1x1"): ((34.5, 9), (71.5, 29)),
    ("gpt", "2x1x1x1"): ((34.5, 11), (46, 29)),
    ("gpt", "1x2x1x1"): ((79, 14), (130, 31)),
    ("gpt", "1x1x2x1"): ((34.5, 13), (71, 29)),
    ("llama", "1x1x1x1"): ((58.5, 11), (86, 21)),
    ("llama", "1x2x1x1"): ((103, 19), (162, 23)),
}
"""By family and grid, forward and backward: bytes a token and feature of the residual stream on a rank, and operators
and collectives without those of attention, on a GPU, where a compiled function is one operator that reads and writes
everything once. How often it does so indeed test_compiled.py says.
"""
OPTIMIZER_BYTES = 36.5
"""A parameter, with the gradient's norm, clipping and the copy in bf16, whose 2 bytes count as read, too."""
LOGIT = {"1x1x1x1": 12.5, "2x1x1x1": 12.5}
"""Bytes of the loss and its gradient for each logit of a rank."""


@cache
def costs(family: str, grid: str, layers: int, vocabulary: int) -> dict[str, tuple[int, int]]:
    """Bytes and operators of each phase of a step."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    model, on = replace(MODELS[family], layers=layers, vocabulary=vocabulary), Grid.parse(grid)
    phase = ""
    plan = dry_plan(model, on, Batch(SEQUENCES * on.batch_split), checkpoint=False)
    for event in trace(*plan, compiled="all"):
        num_bytes, operators = found[phase]
        match event:
            case Mark(phase):
                pass
            case Sweep(moved, kernels):
                found[phase] = num_bytes + moved, operators + kernels
            case MatrixProduct() | Attention():
                found[phase] = num_bytes, operators + 1
    return found


@pytest.mark.parametrize(("family", "grid"), LAYER)
def test_a_layer_moves_and_dispatches_no_more(family: str, grid: str) -> None:
    two, three = (costs(family, grid, layers, VOCABULARY) for layers in (2, 3))
    elements = SEQUENCES * SEQUENCE * HIDDEN / Grid.parse(grid).y
    for phase, (most_bytes, most_operators) in zip(PASSES, LAYER[family, grid], strict=True):
        assert (three[phase][0] - two[phase][0]) / elements <= most_bytes
        assert three[phase][1] - two[phase][1] <= most_operators


def test_the_optimizer_moves_no_more_a_parameter_and_needs_no_operators_for_it() -> None:
    two, three = (costs("gpt", "1x1x1x1", layers, VOCABULARY) for layers in (2, 3))
    added = 12 * HIDDEN**2 + 13 * HIDDEN
    assert (three["optimizer"][0] - two["optimizer"][0]) / added <= OPTIMIZER_BYTES
    assert three["optimizer"][1] == two["optimizer"][1]
    assert (three[""][0] - two[""][0]) / added < 1, "when the next step starts nothing is cast again"


@pytest.mark.parametrize("grid", LOGIT)
def test_the_loss_moves_no_more(grid: str) -> None:
    once, twice = (costs("gpt", grid, 2, vocabulary) for vocabulary in (VOCABULARY, 2 * VOCABULARY))
    logits = SEQUENCES * SEQUENCE * VOCABULARY / Grid.parse(grid).x
    assert sum(twice[phase][0] - once[phase][0] for phase in PASSES) / logits <= LOGIT[grid]
