"""Diffusion's schedules are the papers', and its steps undo what they do to images that are known."""

import math
from itertools import pairwise

import pytest
import torch

from engine.layers.counter_random import BatchRows, normal
from engine.models.denoising import FEWEST_LINEAR
from engine.models.diffusion import SCHEDULES, Diffusion, SimpleLoss, cosine_betas, linear_betas

STEPS = 1000
SHAPE = (3, 8, 8)
BOTH = pytest.mark.parametrize(
    "diffusion", [Diffusion.of_betas(make(STEPS)) for make in SCHEDULES.values()], ids=SCHEDULES
)


def drawn(seed: int, count: int = 4) -> torch.Tensor:
    return normal(BatchRows(seed, 0, torch.arange(count)), SHAPE, torch.float64)


def at(*steps: int) -> torch.Tensor:
    return torch.tensor(steps)


def test_the_linear_schedule_is_that_of_ho_et_al() -> None:
    betas = linear_betas(STEPS).tolist()
    assert (betas[0], betas[-1]) == pytest.approx((1e-4, 0.02), rel=1e-12)
    left = 1.0
    for step, found in enumerate(Diffusion.of_betas(linear_betas(STEPS)).alpha_bars[1:].tolist()):
        assert betas[step] == pytest.approx(1e-4 + (0.02 - 1e-4) * step / (STEPS - 1), rel=1e-12)
        left *= 1 - betas[step]
        assert found == pytest.approx(left, rel=1e-12)
    # Of as many steps as one likes as little is left: log alpha-bar is about minus the integral of beta, 10.05.
    assert math.log(left) == pytest.approx(-10.12, abs=0.01)
    assert math.log(Diffusion.of_betas(linear_betas(4000)).alpha_bars[-1]) == pytest.approx(-10.07, abs=0.01)


def test_a_linear_schedule_of_the_fewest_steps_leaves_something_of_an_image_and_of_fewer_nothing() -> None:
    assert linear_betas(FEWEST_LINEAR)[-1] < 1 <= linear_betas(FEWEST_LINEAR - 1)[-1]


def test_the_cosine_schedule_is_that_of_nichol_and_dhariwal() -> None:
    def f(step: int) -> float:
        return math.cos((step / STEPS + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = cosine_betas(STEPS)
    left = Diffusion.of_betas(betas).alpha_bars.tolist()
    assert left[:-1] == pytest.approx([f(step) / f(0) for step in range(STEPS)], rel=1e-10)
    assert betas.max() == betas[-1] == 0.999, "the last one would be 1"
    assert left[-1] == pytest.approx(0.001 * left[-2], rel=1e-10)


@BOTH
def test_a_network_that_knows_the_image_gets_it_back(diffusion: Diffusion) -> None:
    """By DDIM, in any number of steps, exactly; and the noise again, on the way back."""
    start, noise = drawn(1), drawn(2)
    for visited in ([STEPS, 0], [STEPS, 500, 20, 1, 0], [*range(STEPS, 0, -37), 0]):
        x = first = diffusion.noisy(start, noise, at(STEPS))
        for step, to in pairwise(visited):
            x = diffusion.implicit(x, start, at(step), at(to))
            torch.testing.assert_close(x, diffusion.noisy(start, noise, at(to)), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(x, start, rtol=1e-7, atol=1e-7)
    x = diffusion.noisy(start, noise, at(1))
    for step, to in ((1, 300), (300, STEPS)):
        x = diffusion.implicit(x, start, at(step), at(to))
    torch.testing.assert_close(x, first, rtol=1e-9, atol=1e-9)


@BOTH
@pytest.mark.parametrize(("step", "to"), [(1, 0), (2, 1), (STEPS, STEPS - 1), (STEPS, 0), (700, 100)])
def test_ancestral_steps_lead_from_one_distribution_to_the_other(diffusion: Diffusion, step: int, to: int) -> None:
    """Steps from x_t ~ q(x_t | x_0) give q(x_to | x_0): its mean, and its variance."""
    start, zero, one = drawn(1), torch.zeros(4, *SHAPE).double(), torch.ones(4, *SHAPE).double()
    mean = diffusion.ancestral(diffusion.noisy(start, zero, at(step)), start, zero, at(step), at(to))
    torch.testing.assert_close(mean, diffusion.noisy(start, zero, at(to)), rtol=1e-12, atol=1e-12)
    of_x = diffusion.ancestral(one, zero, zero, at(step), at(to))
    of_fresh = diffusion.ancestral(zero, zero, one, at(step), at(to))
    left, left_to = diffusion.alpha_bars[step], diffusion.alpha_bars[to]
    variance = of_x**2 * (1 - left) + of_fresh**2
    torch.testing.assert_close(variance, (1 - left_to) * one, rtol=1e-12, atol=1e-12)


@BOTH
def test_an_ancestral_step_is_algorithm_2_of_ho_et_al(diffusion: Diffusion) -> None:
    x, noise, fresh = drawn(1), drawn(2), drawn(3)
    for step in (2, 400, 900):
        left, before = diffusion.alpha_bars[step], diffusion.alpha_bars[step - 1]
        alpha = left / before
        mean = (x - (1 - alpha) / (1 - left).sqrt() * noise) / alpha.sqrt()
        deviation = ((1 - before) / (1 - left) * (1 - alpha)).sqrt()
        found = diffusion.ancestral(x, diffusion.start(x, noise, at(step)), fresh, at(step), at(step - 1))
        torch.testing.assert_close(found, mean + deviation * fresh, rtol=1e-10, atol=1e-10)


@BOTH
def test_images_of_a_batch_are_at_steps_of_their_own(diffusion: Diffusion) -> None:
    start, noise, fresh = drawn(1), drawn(2), drawn(3)
    steps, to = at(1, 10, 500, STEPS), at(0, 3, 499, 1)
    x = diffusion.noisy(start, noise, steps)
    torch.testing.assert_close(diffusion.start(x, noise, steps), start, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(diffusion.noise(x, start, steps), noise, rtol=1e-9, atol=1e-9)
    alone = [slice(i, i + 1) for i in range(4)]
    for found, each in (
        (x, [diffusion.noisy(start[i], noise[i], steps[i]) for i in alone]),
        (
            diffusion.ancestral(x, start, fresh, steps, to),
            [diffusion.ancestral(x[i], start[i], fresh[i], steps[i], to[i]) for i in alone],
        ),
        (diffusion.implicit(x, start, steps, to), [diffusion.implicit(x[i], start[i], steps[i], to[i]) for i in alone]),
    ):
        assert torch.equal(found, torch.cat(each))


def test_a_network_of_gaussian_images_is_sampled_to_their_variance() -> None:
    """The best network for images of variance v is linear; samplers come to v but for what finite steps lose."""
    diffusion, variance = Diffusion.of_betas(cosine_betas(STEPS)), 0.25
    ancestral = implicit = drawn(1, 64)
    for step in range(STEPS, 0, -1):
        left = diffusion.alpha_bars[step]
        share = left.sqrt() * variance / (left * variance + 1 - left)
        ancestral = diffusion.ancestral(ancestral, share * ancestral, drawn(step + 1, 64), at(step), at(step - 1))
        implicit = diffusion.implicit(implicit, share * implicit, at(step), at(step - 1))
    assert float(implicit.var()) == pytest.approx(variance, rel=0.03)
    assert float(ancestral.var()) == pytest.approx(variance, rel=0.06)


def test_the_simple_loss_looks_at_the_noise_alone() -> None:
    noise, other = drawn(1), drawn(2)
    assert float(SimpleLoss()(other, noise, noise.numel())) == pytest.approx(float(((other - noise) ** 2).mean()))
    assert torch.equal(SimpleLoss()(torch.cat([other, drawn(3)], dim=1), noise), SimpleLoss()(other, noise))


def test_precision_of_images_is_kept() -> None:
    diffusion = Diffusion.of_betas(cosine_betas(STEPS))
    x = drawn(1).to(torch.bfloat16)
    assert diffusion.ancestral(diffusion.noisy(x, x, at(5)), x, x, at(5), at(4)).dtype == torch.bfloat16
