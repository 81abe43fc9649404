"""The serial U-Net has the published counts, takes and gives images, and learns to find noise in them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from engine.errors import UsageError
from engine.grid import Grid
from engine.layers.counter_random import BatchRows, normal, time_steps
from engine.layers.dropout import PixelDropout
from engine.layers.embedding import waves
from engine.layers.passes import Pass
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.models.diffusion import Diffusion, SimpleLoss, cosine_betas
from engine.models.flops import model_flops, repeated_flops
from engine.models.image_operations import Conv2d, GroupNorm
from engine.models.serial import SerialModel
from engine.models.unet.config import UNetConfig
from engine.models.unet.model import (
    Convolved,
    PixelAttention,
    Resample,
    ResidualBlock,
    TimeEmbedding,
    UNet,
    double,
    half,
    same,
)
from engine.parallel.initial import initialise_serial, without_values

# par4d Table II by base, whose first is that of its Fig. 8: as guided-diffusion makes the network, and as
# improved-diffusion does, the code that it cites.
GUIDED = {128: 57_091_203, 256: 228_149_507, 416: 602_238_627}
GUIDED |= {512: 912_167_427, 768: 2_052_053_763, 1024: 3_647_808_515}
IMPROVED = {128: 52_546_438, 256: 209_983_238, 416: 554_281_318}
IMPROVED |= {512: 839_527_942, 768: 1_888_634_118, 1024: 3_357_301_766}


def guided(base: int) -> UNetConfig:
    return UNetConfig("guided", base)


def improved(base: int) -> UNetConfig:
    return UNetConfig("improved", base, level_heads=4, resampling="convolution", channels_out=6)


@pytest.mark.parametrize("base", GUIDED)
def test_parameters_are_those_of_both_readings_of_the_table(base: int) -> None:
    for shape, tensors, count in ((guided(base), 494, GUIDED[base]), (improved(base), 446, IMPROVED[base])):
        with torch.device("meta"):
            found = [parameter.numel() for parameter in UNet(shape).parameters()]
        assert (len(found), sum(found)) == (tensors, count)


def block(k: int, n: int, pixels: int, base: int) -> int:
    """Multiplications and additions of one image in a residual block, doubled as is the habit."""
    return 2 * pixels * (9 * k * n + 9 * n * n + (k != n) * k * n) + 2 * 4 * base * 2 * n


def attention(n: int, pixels: int) -> int:
    return 2 * pixels * 4 * n * n + 4 * pixels**2 * n


@pytest.mark.parametrize("base", [128, 416])
def test_each_level_works_on_images_of_its_side(base: int) -> None:
    """Counted by hand: base channels at side 32, twice as many at 16, 8 and 4; attention at 16, 8 and the middle."""
    one, two = base, 2 * base
    down = 3 * block(one, one, 1024, base)
    halved = [block(n, n, pixels, base) for n, pixels in ((one, 256), (two, 64), (two, 16))]
    down += block(one, two, 256, base) + 2 * block(two, two, 256, base) + 3 * attention(two, 256)
    down += 3 * block(two, two, 64, base) + 3 * attention(two, 64) + 3 * block(two, two, 16, base)
    middle = 2 * block(two, two, 16, base) + attention(two, 16)
    doubled = [block(two, two, pixels, base) for pixels in (64, 256, 1024)]
    up = 4 * block(2 * two, two, 16, base) + 4 * block(2 * two, two, 64, base) + 4 * attention(two, 64)
    up += 3 * block(2 * two, two, 256, base) + block(two + one, two, 256, base) + 4 * attention(two, 256)
    up += block(two + one, one, 1024, base) + 3 * block(2 * one, one, 1024, base)
    ends = 2 * (2 * 1024 * 27 * base) + 2 * (4 * base**2 + 16 * base**2)
    images = 2
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        network, noisy = UNet(guided(base)), torch.empty(images, 3, 32, 32)
        assert network(noisy, torch.empty(images, dtype=torch.int64)).shape == noisy.shape
    assert counter.get_total_flops() == images * (down + sum(halved) + middle + sum(doubled) + up + ends)


def test_improved_networks_are_trained_as_their_authors_do() -> None:
    """README of improved-diffusion: --dropout 0.3 for CIFAR-10; script_util.py: rescale_timesteps=True."""
    with torch.device("meta"):
        noisy, numbers = torch.empty(2, 3, 32, 32), torch.empty(2, dtype=torch.int64)
        assert UNet(improved(128))(noisy, numbers).shape == (2, 6, 32, 32)
    shape = lookup("improved-50m")
    assert (shape.dropout, shape.steps_scale, lookup("unet-50m").steps_scale) == (0.3, 1000 / 4000, 1)
    rescaled, whole = (TimeEmbedding(64, sines_first=False, scale=scale).double() for scale in (0.25, 1))
    whole.load_state_dict(rescaled.state_dict())
    steps = torch.tensor([1, 2, 1235, 4000])
    torch.testing.assert_close(rescaled(steps), whole((steps - 1) / 4 + 1), rtol=1e-12, atol=0)


def test_channels_of_pixels_are_dropped_before_the_last_convolution_and_in_training_alone() -> None:
    x = torch.ones(2, 64, 16, 16, dtype=torch.float64)
    dropout = PixelDropout(0.3, site=5)
    at = Pass.of(x, BatchRows(0, 7, torch.arange(2)))
    dropped = dropout(x, at)
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.7}
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    halves = [PixelDropout(0.3, site=5, part=part)(half, at) for part, half in enumerate(x.chunk(2, dim=1))]
    assert torch.equal(torch.cat(halves, dim=1), dropped)
    assert dropout.eval()(x, Pass.of(x)) is not None
    shape = small(dropout=0.3, last_std=0.02)
    network = initialise_serial(shape, 0, dtype=torch.float64)
    noisy, steps = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.tensor([3, 900])
    network.eval()
    whole = network(noisy, steps)
    network.train()
    first, again, later = (network(noisy, steps, rows=BatchRows(0, step, torch.arange(2))) for step in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(first, whole)


def small(**other: object) -> UNetConfig:
    return UNetConfig("small", 64, **{"multipliers": (1, 2), "depth": 1, "attention": (4,), "image": 8} | other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"resampling": "convolution", "level_heads": 4, "channels_out": 6},
        {"scales": False},
        {"resampling": "convolution", "padding": "after", "sines_first": True},
    ],
    ids=["block", "convolution", "shifts alone", "as Ho et al. have it"],
)
def test_a_new_network_finds_nothing_and_every_weight_matters_in_time(other: dict[str, object]) -> None:
    torch.manual_seed(0)
    network = initialise_serial(small(**other), 0, dtype=torch.float64)
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    steps = torch.tensor([1, 10, 1000])
    assert network(images, steps).count_nonzero() == 0
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    found = network(images, steps)
    found.square().sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.count_nonzero()] == []
    alone = torch.cat([network(images[i : i + 1], steps[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(alone, found, rtol=1e-10, atol=1e-10)
    assert (network(images, steps.flip(0))[0] - found[0]).abs().max() > 1e-3


def normed(x: torch.Tensor, norm: torch.nn.GroupNorm, eps: float = 1e-5) -> torch.Tensor:
    """Each image's 32 groups of channels to mean 0 and variance 1."""
    groups = x.reshape(len(x), 32, -1)
    groups = (groups - groups.mean(2, keepdim=True)) / (groups.var(2, keepdim=True, correction=0) + eps).sqrt()
    return groups.view_as(x) * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid()


def randomly(layer: torch.nn.Module) -> None:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)


@pytest.mark.parametrize("scales", [True, False])
@pytest.mark.parametrize("resample", [same, half, double])
def test_a_residual_block_is_that_of_dhariwal_and_nichol_or_shifts_alone(resample: Resample, scales: bool) -> None:
    torch.manual_seed(0)
    eps = 1e-5 if scales else 0.5
    block = ResidualBlock(UNetConfig("a block", 32, scales=scales, norm_eps=eps), 64, 96, resample, 0).double()
    randomly(block)
    x, embedding = torch.randn(2, 64, 4, 4).double(), torch.randn(2, 128).double()
    resampled = {
        same: lambda x: x,
        half: lambda x: (x[..., ::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, ::2] + x[..., 1::2, 1::2]) / 4,
        double: lambda x: x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3),
    }[resample]
    h = block.conv1(resampled(silu(normed(x, block.norm1, eps))))
    by_step = (embedding @ block.embedding.weight.T + block.embedding.bias)[:, :, None, None]
    if scales:
        scale, shift = by_step.chunk(2, dim=1)
        h = normed(h, block.norm2) * (1 + scale) + shift
    else:
        h = normed(h + by_step, block.norm2, eps)
    expected = (block.skip or same)(resampled(x)) + block.conv2(silu(h))
    torch.testing.assert_close(block(x, embedding, Pass.of(x)), expected, rtol=1e-10, atol=1e-10)


def test_pixels_attend_to_all_of_their_image_by_heads() -> None:
    torch.manual_seed(0)
    layer = PixelAttention(64, 16, 1e-5).double()
    randomly(layer)
    x = torch.randn(2, 64, 4, 4).double()
    rows = normed(x, layer.norm).flatten(2).transpose(1, 2)
    q, k, v = layer.attention.qkv(rows).split(64, dim=2)
    heads = []
    for head in range(4):
        own = slice(16 * head, 16 * head + 16)
        weights = (q[..., own] @ k[..., own].transpose(1, 2) / 4).softmax(dim=2)
        heads.append(weights @ v[..., own])
    expected = x + layer.attention.out(torch.cat(heads, dim=2)).transpose(1, 2).reshape(2, 64, 4, 4)
    torch.testing.assert_close(layer(x, Pass.of(x)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sines_first", [False, True])
def test_waves_are_those_of_vaswani_et_al_or_of_ho_et_al_where_sines_come_first(sines_first: bool) -> None:
    found = waves(torch.tensor([0, 3, 999]), 8, sines_first=sines_first)
    for row, step in enumerate((0, 3, 999)):
        angles = [step / 10_000 ** (number / (3 if sines_first else 4)) for number in range(4)]
        halves = [*map(math.cos, angles)], [*map(math.sin, angles)]
        first, second = halves[::-1] if sines_first else halves
        assert found[row].tolist() == pytest.approx([*first, *second], abs=1e-12)


def test_a_convolution_that_pads_after_sees_no_zeros_before() -> None:
    torch.manual_seed(0)
    layer, x = Convolved(32, "half", pads_after=True), torch.randn(2, 32, 4, 4)
    first = layer(x)[:, :, 0, 0]
    expected = torch.einsum("bkyx,nkyx->bn", x[:, :, :3, :3], layer.conv.weight) + layer.conv.bias
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)
    assert layer(x).shape == (2, 32, 2, 2)
    assert Convolved(32, "double", pads_after=True)(x).shape == (2, 32, 8, 8)


def test_the_first_step_has_the_waves_of_zero() -> None:
    torch.manual_seed(0)
    embedding = TimeEmbedding(64, sines_first=False, scale=1).double()
    by_hand = torch.nn.functional.silu(embedding.fc1.weight[:, :32].sum(1) + embedding.fc1.bias)
    expected = torch.nn.functional.silu(embedding.fc2(by_hand))
    torch.testing.assert_close(embedding(torch.tensor([1]))[0], expected, rtol=1e-10, atol=1e-10)


def test_thirty_steps_of_training_lower_the_loss() -> None:
    shape = UNetConfig("one level", 64, (1,), depth=1, attention=(8,), image=8)
    network = initialise_serial(shape, 0, dtype=torch.float32)
    diffusion, optimizer = Diffusion.of_betas(cosine_betas(1000)), torch.optim.AdamW(network.parameters(), lr=1e-3)
    ramp = torch.linspace(-1, 1, 8).view(1, 1, 8, 1)
    images = torch.cat([ramp, -ramp]).repeat(8, 3, 1, 8)
    losses = []
    for step in range(30):
        rows = BatchRows(3, step, torch.arange(len(images)))
        steps, noise = time_steps(rows, diffusion.steps), normal(rows, images.shape[1:])
        loss = SimpleLoss()(network(diffusion.noisy(images, noise, steps), steps), noise, noise.numel())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(1, abs=0.1), "the variance of the noise, of which a new network finds nothing"
    assert sum(losses[-5:]) / 5 < 0.4


@st.composite
def shapes(draw: st.DrawFn) -> UNetConfig:
    """U-Nets of any options."""
    levels = draw(st.integers(1, 3))
    image = 2 ** (levels - 1) * draw(st.integers(1, 3))
    sides = [image // 2**level for level in range(levels)]
    return UNetConfig(
        "drawn",
        32 * draw(st.integers(1, 3)),
        tuple(draw(st.lists(st.integers(1, 3), min_size=levels, max_size=levels))),
        draw(st.integers(1, 3)),
        tuple(draw(st.sets(st.sampled_from(sides)))),
        head_channels=32,
        level_heads=draw(st.none() | st.sampled_from([4, 8])),
        resampling=draw(st.sampled_from(["block", "convolution"])),
        padding=draw(st.sampled_from(["around", "after"])),
        sines_first=draw(st.booleans()),
        scales=draw(st.booleans()),
        image=image,
        channels_out=draw(st.sampled_from([3, 6])),
    )


@settings(max_examples=6)
@given(shapes())
def test_the_table_has_the_layers_parameters_and_flops_of_the_serial_network(shape: UNetConfig) -> None:
    network, serial = shape.network(), without_values(shape)
    found = {name: tuple(parameter.shape) for name, parameter in serial.named_parameters()}
    assert list(found.items()) == [(name, placed.shape) for name, placed in network.placements().items()]
    made = {name: module for name, module in serial.named_modules() if isinstance(module, nn.Conv2d | nn.GroupNorm)}
    said = {
        f"{section.prefix(number)}{operation.name}": operation
        for section, number in network.repeats()
        for operation in section.operations
        if isinstance(operation, Conv2d | GroupNorm)
    }
    assert made.keys() == said.keys()
    for name, operation in said.items():
        module = made[name]
        assert isinstance(module, nn.Conv2d) == isinstance(operation, Conv2d)
        if isinstance(operation, Conv2d):
            assert module.kernel_size == (operation.kernel, operation.kernel)
    assert counted(serial, shape.image) == model_flops(shape, 2)


def counted(serial: SerialModel, side: int) -> int:
    """Flops of two images, by torch."""
    with torch.device("meta"):
        pixels, noise = torch.empty(2, 3, side, side, dtype=torch.uint8), torch.empty(2, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        serial.loss({"pixels": pixels, "noise": noise}).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["unet-250m", "improved-4b"])
def test_flops_of_the_tables_networks_are_those_that_torch_counts(name: str) -> None:
    shape = lookup(name)
    assert counted(without_values(shape).eval(), 32) == model_flops(shape, 2)


def test_a_rank_repeats_what_no_axis_splits() -> None:
    """Attention along y, and along x the first convolution, whose input takes no gradient, and the last one."""
    shape, images = guided(128), 4
    attending = 3 * 4 * images * (7 * 256**2 * 256 + 7 * 64**2 * 256 + 16**2 * 256)
    conv = 2 * images * 1024 * 27 * 128
    assert repeated_flops(shape, images, Grid(x=3, y=2), recomputed=0) == attending + 2 * (2 * conv + 3 * conv)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"base": 80}, "32, but 80 .* 96"),
        ({"image": 12, "multipliers": (1, 2, 2, 2)}, "12 .* 8: 16"),
        ({"multipliers": ()}, "multipliers .* none"),
        ({"multipliers": (2, 0)}, "multipliers .* 2, 0"),
        ({"channels_out": 1}, "3 .* 6 .* channels_out of 1"),
        ({"norm_eps": 0.0}, "norm_eps .* 0"),
        ({"schedule": "cosin"}, "'cosin': .* cosine"),
        ({"diffusion_steps": 20}, "20 .* 21 .* cosine"),
        ({"level_heads": 3}, "128 channels, which 3 heads"),
        ({"head_channels": 48}, "128 channels, which heads of 48"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, object], says: str) -> None:
    shape: dict[str, object] = {"base": 64, "multipliers": (1, 2), "attention": (4,), "image": 8} | wrong
    with pytest.raises(UsageError, match=says):
        UNetConfig("wrong", **shape)  # type: ignore[arg-type]


@pytest.mark.parametrize(("image", "sides"), [(8, {8, 1}), (16, {16, 8, 2}), (24, {3}), (48, {6}), (128, {16})])
def test_images_of_any_side_that_levels_halve_are_taken_and_pixels_attend_where_a_level_has_such_a_side(
    image: int, sides: set[int]
) -> None:
    """The last one is that of the middle."""
    shape = ModelChoice(architecture="unet", base=64, image=image).resolve()
    assert isinstance(shape, UNetConfig)
    assert {step.side for step in shape.steps if step.attends} == sides
