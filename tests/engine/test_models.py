"""The serial networks and the published sizes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from training import SEED

from engine.errors import UsageError
from engine.layers.elementwise import Rotate
from engine.layers.passes import Pass
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup, published
from engine.models.choice import ModelChoice
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.llama.model import SelfAttention
from engine.models.transformer import rotary_frequencies, rotation
from engine.parallel.initial import initialise_serial

GPT_TEST, LLAMA_TEST = lookup("gpt-test"), lookup("llama-test")
assert isinstance(GPT_TEST, GPTConfig)
assert isinstance(LLAMA_TEST, LlamaConfig)

# Layers, hidden size and heads by billions of parameters, as printed: axonn-sc24 Table II, axonn-ipdps22 Table I.
TABLES = {5: (24, 4096, 32), 10: (32, 5120, 40), 20: (32, 7168, 56), 40: (38, 9216, 72), 60: (56, 9216, 72)}
TABLES |= {80: (42, 12288, 96), 160: (84, 12288, 96), 320: (96, 16384, 128), 640: (192, 16384, 128)}
TABLES |= {12: (48, 4512, 24), 24: (48, 6336, 36), 50: (96, 6528, 48), 100: (96, 9360, 60)}


@pytest.mark.parametrize("billions", TABLES)
def test_parameters_are_those_of_the_published_shape(billions: int) -> None:
    layers, hidden, heads = TABLES[billions]
    config = lookup(f"gpt-{billions}b")
    assert (config.layers, config.hidden, config.heads) == (layers, hidden, heads)
    assert config.nominal == billions * 1e9
    # Matrices with their biases and norms of each layer, two tables of tokens, one of positions, the last norm. The
    # names are rounded, and their tables don't say which of these count.
    of_blocks = layers * (12 * hidden**2 + 13 * hidden)
    tables = 2 * config.vocabulary * hidden
    assert config.parameters == of_blocks + tables + config.sequence * hidden + 2 * hidden


@pytest.mark.parametrize(
    "config",
    [
        GPT_TEST,
        replace(GPT_TEST, tied=True),
        replace(GPT_TEST, bias=False),
        replace(GPT_TEST, norm="rmsnorm"),
        LLAMA_TEST,
        replace(LLAMA_TEST, tied=True),
    ],
    ids=["gpt", "gpt-tied", "gpt-no-bias", "gpt-rmsnorm", "llama", "llama-tied"],
)
def test_the_placements_are_those_of_the_serial_models_parameters(config: Architecture) -> None:
    with torch.device("meta"):
        model = config.serial()
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert sum(math.prod(shape) for shape in shapes.values()) == config.parameters
    assert {name: placement.shape for name, placement in config.placements().items()} == shapes


@pytest.mark.parametrize("name", [name for name in published() if name.startswith("llama-3")])
def test_a_llama_has_exactly_the_parameters_that_its_model_card_prints(name: str) -> None:
    config = lookup(name)
    with torch.device("meta"):
        model = config.serial()
    assert sum(p.numel() for p in model.parameters()) == config.parameters == config.nominal
    assert lookup("gpt2-125m").parameters == pytest.approx(124.4e6, rel=1e-3)


@pytest.mark.parametrize("config", [GPT_TEST, LLAMA_TEST], ids=lambda config: config.name)
def test_an_untrained_model_predicts_evenly_and_causally(config: Architecture) -> None:
    model = initialise_serial(config, SEED, dtype=torch.float64)
    tokens = torch.arange(2 * config.sequence).view(2, -1) % config.vocabulary
    logits = model(tokens)
    assert model.loss({"tokens": tokens, "targets": tokens}).item() / tokens.numel() == pytest.approx(
        math.log(config.vocabulary), rel=0.02
    )
    changed = tokens.clone()
    changed[:, 20] += 1
    difference = (model(changed) - logits).abs().amax(dim=(0, 2))
    assert difference[:20].max() == 0
    assert difference[20:].min() > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"architecture": "lama", "layers": 1}, "'lama': .* llama"),
        ({"architecture": "llama", "layers": 1}, "--layers, --hidden, --heads, --kv-heads and --ffn"),
        ({"model": "gpt-5b", "layers": 99}, "24 .* --layers"),
        ({"model": "unet-tiny", "layers": 99}, "unet .* --layers"),
        ({"model": "unet-tiny", "base": 64}, "--model NAME or --base"),
        ({"architecture": "unet"}, "--model NAME, .* --base"),
        ({"layers": 0, "hidden": 8, "heads": 2}, "layers .* 0"),
        ({"model": "llama-test", "no_bias": True}, "llama .* --no-bias"),
        ({"model": "llama-test", "norm": "rmsnorm", "dropout": 0.0}, "--dropout and --norm"),
    ],
)
def test_a_choice_that_is_no_network_says_which_option_is_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ModelChoice(**options).resolve()


def test_what_is_not_chosen_of_a_published_size_stays_as_it_was_published() -> None:
    assert ModelChoice(model="gpt2-125m").resolve() == lookup("gpt2-125m")
    assert ModelChoice(model="gpt2-125m").resolve().ties, "a flag that isn't given is no choice"
    first = ModelChoice(model="gpt-320b", layers=2).resolve()
    assert (first.name, first.layers, first.hidden) == ("gpt-320b-l2", 2, lookup("gpt-320b").hidden)
    llama = ModelChoice(architecture="llama", layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=512, seq=32)
    assert llama.resolve().shape == LLAMA_TEST.shape


def test_names_are_found_whatever_their_case_and_unknown_ones_get_the_nearest() -> None:
    assert lookup("GPT-5B") == published()["gpt-5b"]
    with pytest.raises(UsageError, match="gpt-80b"):
        lookup("gpt-80")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"hidden": 65}, "65 .* 4; 68"),
        ({"layers": 0}, "layers .* 1"),
        ({"norm": "batchnorm"}, "layernorm or rmsnorm"),
        ({"dropout": 1.0}, "--dropout .* 1.0"),
    ],
)
def test_a_gpt_that_can_not_be_is_refused(shape: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        GPTConfig(**({"name": "m", "layers": 1, "hidden": 64, "heads": 4, "vocabulary": 8, "sequence": 8} | shape))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"hidden": 66}, "66 .* 8; 72"),
        ({"kv_heads": 3}, "8 .* 3; 9"),
        ({"ffn": 0}, "ffn .* 1"),
        ({"hidden": 24}, "24 / 8 has 3"),
    ],
)
def test_a_llama_that_can_not_be_is_refused(shape: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replace(LLAMA_TEST, **shape)


def test_rotary_positions_make_attention_depend_on_distance_alone() -> None:
    """The product of a query and a key is the same wherever the two stand, if they stand as far apart."""
    turn = rotation(LLAMA_TEST, torch.arange(12), torch.float64)
    q, k = torch.randn(2, LLAMA_TEST.head_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q_ND, k_ND = (Rotate()(x.expand(1, 1, 12, -1), turn)[0, 0] for x in (q, k))
    products = q_ND @ k_ND.t()
    for apart in range(6):
        assert products.diagonal(apart).std() < 1e-12
    assert products[:, 0].std() > 0.1


def test_slowed_rotary_frequencies_keep_short_wavelengths_and_stretch_long_ones() -> None:
    """Llama 3.1's factor of 8: unchanged below 2048 tokens a turn, an eighth above 8192, between them in between."""
    llama = lookup("llama-3.1-8b")
    assert isinstance(llama, LlamaConfig)
    slowed = rotary_frequencies(llama, torch.device("cpu"))
    plain = rotary_frequencies(replace(llama, rope_scaling=1.0), torch.device("cpu"))
    turn = 2 * math.pi / plain
    assert torch.equal(slowed[turn < 2048], plain[turn < 2048])
    assert torch.allclose(slowed[turn > 8192], plain[turn > 8192] / 8, rtol=1e-15)
    between = (slowed / plain)[(turn > 2048) & (turn < 8192)]
    assert len(between) > 3
    assert ((between > 1 / 8) & (between < 1)).all()


def test_a_fused_projection_computes_what_separate_ones_would() -> None:
    """Attention by its definition, a head at a time, from the rows of the fused weight."""
    torch.manual_seed(0)
    attention = SelfAttention(LLAMA_TEST).double()
    x = torch.randn(2, 7, LLAMA_TEST.hidden, dtype=torch.float64)
    turn = rotation(LLAMA_TEST, torch.arange(7), x.dtype)
    size, queries, keys = LLAMA_TEST.head_size, LLAMA_TEST.heads, LLAMA_TEST.kv_heads
    q, k, v = attention.qkv.weight.split([queries * size, keys * size, keys * size])

    def head(weight: torch.Tensor, number: int) -> torch.Tensor:
        return x @ weight[number * size : (number + 1) * size].t()

    heads = []
    for number in range(queries):
        key = number // (queries // keys)
        q_h, k_h = (Rotate()(part.unsqueeze(1), turn).squeeze(1) for part in (head(q, number), head(k, key)))
        scores = (q_h @ k_h.transpose(1, 2) / size**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ head(v, key))
    assert torch.allclose(attention(x, Pass.of(x), turn), attention.out(torch.cat(heads, dim=2)), rtol=1e-10)
