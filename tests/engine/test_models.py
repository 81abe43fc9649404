"""The serial GPT and the published sizes."""

import math
from dataclasses import replace

import pytest
import torch
from training import SEED

from engine.errors import UsageError
from engine.models.catalogue import lookup, published
from engine.models.gpt.config import GPTConfig
from engine.parallel.initial import initialise_serial

# Parameters in billions: layers, hidden size and heads as printed. Sources: axonn-sc24 Table II, axonn-ipdps22 Table I.
TABLES = {
    "gpt-5b": (5, 24, 4096, 32),
    "gpt-10b": (10, 32, 5120, 40),
    "gpt-20b": (20, 32, 7168, 56),
    "gpt-40b": (40, 38, 9216, 72),
    "gpt-60b": (60, 56, 9216, 72),
    "gpt-80b": (80, 42, 12288, 96),
    "gpt-160b": (160, 84, 12288, 96),
    "gpt-320b": (320, 96, 16384, 128),
    "gpt-640b": (640, 192, 16384, 128),
    "gpt-12b": (12, 48, 4512, 24),
    "gpt-24b": (24, 48, 6336, 36),
    "gpt-50b": (50, 96, 6528, 48),
    "gpt-100b": (100, 96, 9360, 60),
}


@pytest.mark.parametrize("name", TABLES)
def test_computed_parameters_agree_with_the_published_name(name: str) -> None:
    billions, layers, hidden, heads = TABLES[name]
    config = lookup(name)
    assert (config.layers, config.hidden, config.heads) == (layers, hidden, heads)
    assert config.nominal == billions * 1e9
    # Names are rounded, and the tables don't say whether embeddings count.
    assert config.parameters == pytest.approx(billions * 1e9, rel=0.065)


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"bias": False}, {"norm": "rmsnorm"}], ids=str)
def test_the_count_is_that_of_the_model_and_of_its_placements(changes: dict[str, object]) -> None:
    config = replace(lookup("gpt-test"), **changes)  # type: ignore[arg-type]
    with torch.device("meta"):
        model = config.serial()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert sum(math.prod(shape) for shape in shapes.values()) == config.parameters
    assert {name: placement.shape for name, placement in config.placements().items()} == shapes


def test_the_125m_network_of_the_validation_has_124_million_parameters() -> None:
    assert lookup("gpt2-125m").parameters == pytest.approx(124.4e6, rel=1e-3)


def test_an_untrained_model_predicts_evenly_and_causally() -> None:
    config = lookup("gpt-test")
    model = initialise_serial(config, SEED, dtype=torch.float64)
    tokens = torch.arange(2 * config.sequence).view(2, -1) % config.vocabulary
    logits = model(tokens)
    assert model.loss(tokens, tokens).item() / tokens.numel() == pytest.approx(math.log(config.vocabulary), rel=0.02)
    changed = tokens.clone()
    changed[:, 20] += 1
    difference = (model(changed) - logits).abs().amax(dim=(0, 2))
    assert difference[:20].max() == 0
    assert difference[20:].min() > 0


def test_names_are_found_whatever_their_case_and_unknown_ones_get_the_nearest() -> None:
    assert lookup("GPT-5B") == published()["gpt-5b"]
    with pytest.raises(UsageError, match="did you mean gpt-80b"):
        lookup("gpt-80")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"hidden": 65}, "65 is not a multiple of 4; 68 would be"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"norm": "batchnorm"}, "layernorm or rmsnorm"),
        ({"dropout": 1.0}, "from 0 to below 1"),
    ],
)
def test_a_shape_that_can_not_be_is_refused(shape: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        GPTConfig(**({"name": "m", "layers": 1, "hidden": 64, "heads": 4, "vocabulary": 8, "sequence": 8} | shape))  # type: ignore[arg-type]
