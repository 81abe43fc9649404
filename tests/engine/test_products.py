"""A product on a GPU takes as long as its tiles do in waves, so that its shape decides how fast it is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import systems
from engine.simulator.events import Attention, MatrixProduct
from engine.simulator.machine import ATTENTION, TILE, MachineModel

A100, MI250X, GH200 = (MachineModel.of(systems.load(name), "bf16", None) for name in ("perlmutter", "frontier", "alps"))


def rate(machine: MachineModel, m: int, n: int, k: int) -> float:
    """Share reached of the products' peak."""
    product = MatrixProduct(m, n, k, "NN", 2)
    return product.flops / machine.compute_s(product) / (machine.fitted.products * machine.empirical_peak)


@pytest.mark.parametrize("machine", [A100, MI250X, GH200], ids=lambda machine: machine.name)
def test_the_larger_a_square_product_the_faster_up_to_that_of_the_papers_benchmark(machine: MachineModel) -> None:
    rates = [rate(machine, size, size, size) for size in (256, 512, 1024, 4096, 8192, 32768)]
    assert rates == sorted(rates)
    assert rates[1] < 0.35
    assert rates[-2] > 0.95
    assert rates[-1] == pytest.approx(1, abs=0.01), "axonn-sc24 VI-C measured the empirical peak there"


def test_a_tile_more_than_processors_takes_another_wave() -> None:
    assert A100.processors is not None
    full, over = (rate(A100, TILE * tiles, TILE, 8192) for tiles in (A100.processors, A100.processors + 1))
    assert full > 0.95
    assert over < 0.85 * full


def test_a_deep_product_of_one_tile_is_cut_among_processors() -> None:
    assert A100.processors is not None
    shallow, deep = rate(A100, TILE, TILE, 1024), rate(A100, TILE, TILE, 65536)
    assert shallow < deep
    assert 4 / A100.processors < deep <= 8 / A100.processors


@given(*(st.integers(1, 20000) for _ in range(3)))
def test_no_product_is_faster_than_the_processors_are(m: int, n: int, k: int) -> None:
    assert rate(A100, m, n, k) <= 1


def test_attention_has_its_own_share_of_the_peak() -> None:
    attention = Attention(heads=4096, sequence=2048, head_size=128, element=2, backward=False)
    expected = pytest.approx(attention.flops / (ATTENTION * A100.empirical_peak))
    slower = A100.with_fitted(replace(A100.fitted, products=0.3))
    assert A100.compute_s(attention) == expected
    assert slower.compute_s(attention) == expected
