"""Elements that all ranks together move for two layers in each of colossal-ai's tensor modes, against its Table 1, and
what a rank holds of them.

S is what a layer takes or gives, W its weight. Table 1 counts all ranks for 1D and 2D, but for 2.5D one square of
several, without the sum over them, and for 3D one plane of the cube.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from real_ranks import run_processes
from virtual_ranks import run_ranks

from engine.bench.layers import BothLayers, Layers, parse_counts
from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import Grid
from engine.measure.memory import Allocated
from engine.models.layer_pair import LayerPair
from engine.result.schema import read
from engine.tensor_mode import ALGORITHM_1, SPLIT, SQUARE, SQUARE_AS_PUBLISHED, TensorMode

TOKENS = 144
WIDTHS = [(36, 72), (72, 36), (36, 36)]
ELEMENT = 8


class Sizes(NamedTuple):
    """Elements of what a layer takes, of its weight and of what it gives."""

    x: int
    w: int
    y: int


Formula = Callable[[Sizes], float]


def two_d(q: int, depth: int, *, by_size: bool) -> Formula:
    """Panels of each square, and the sum of weight gradients over the squares."""

    def of(s: Sizes) -> float:
        panels = min(s.x, s.y) if by_size else s.x
        return 3 * (q - 1) * (panels + depth * s.w) + 2 * (depth - 1) * s.w

    return of


CASES: dict[str, tuple[TensorMode, Grid, Formula]] = {
    "2d, 2x2": (SQUARE_AS_PUBLISHED, Grid(2, 2), two_d(2, 1, by_size=False)),
    "2d, 3x3": (SQUARE_AS_PUBLISHED, Grid(3, 3), two_d(3, 1, by_size=False)),
    "2d by size, 2x2": (SQUARE, Grid(2, 2), two_d(2, 1, by_size=True)),
    "2.5d, 2x2 twice along data": (SQUARE_AS_PUBLISHED, Grid(2, 2, 1, 2), two_d(2, 2, by_size=False)),
    "2.5d, 2x2 twice along z": (SQUARE_AS_PUBLISHED, Grid(2, 2, 2), two_d(2, 2, by_size=False)),
    "2.5d by size, 2x2 twice along z": (SQUARE, Grid(2, 2, 2), two_d(2, 2, by_size=True)),
    "3d, 2x2x2": (SPLIT, Grid(2, 2, 2), lambda s: 2 * (s.x + s.w + s.y)),
    "3d, 3x3x3": (SPLIT, Grid(3, 3, 3), lambda s: 2 * 2 * (s.x + s.w + s.y)),
    "4d, 2x2x2": (ALGORITHM_1, Grid(2, 2, 2), lambda s: 2 * (s.x + s.w + s.y)),
}


def sent(comm: Comm, mode: TensorMode, pair: LayerPair) -> float:
    """Elements that a rank sends in a step of both layers."""
    layers = BothLayers(comm, mode, pair, "fp64")
    layers.backward(layers.forward())
    return layers.sent_bytes() / ELEMENT


def moved(mode: TensorMode, grid: Grid, pair: LayerPair) -> float:
    """Elements that all ranks send."""
    return sum(run_ranks(grid, partial(sent, mode=mode, pair=pair)))


@pytest.mark.parametrize(("hidden", "inner"), WIDTHS, ids=["wider inside", "narrower inside", "alike"])
@pytest.mark.parametrize("case", CASES)
def test_layers_move_as_many_elements_as_the_formula_says(case: str, hidden: int, inner: int) -> None:
    mode, grid, formula = CASES[case]
    pair = LayerPair(TOKENS, 1, hidden, inner)
    sizes = [Sizes(TOKENS * linear.k, linear.n * linear.k, TOKENS * linear.n) for linear in pair.linears]
    found = moved(mode, grid, pair)
    assert found == pytest.approx(sum(map(formula, sizes)))
    assert found == pytest.approx(pair.moved_elements(mode, grid))


def test_1d_moves_what_the_first_takes_and_the_second_gives() -> None:
    pair = LayerPair(TOKENS, 1, 36, 72)
    assert moved(ALGORITHM_1, Grid(x=4), pair) == pytest.approx(2 * 3 * 2 * TOKENS * 36)
    assert pair.moved_elements(ALGORITHM_1, Grid(x=4)) == 2 * 3 * 2 * TOKENS * 36


@pytest.mark.parametrize(("mode", "grid"), [(SQUARE, Grid(2, 2)), (SPLIT, Grid(2, 2, 2))], ids=["2d", "3d"])
def test_real_ranks_move_as_many(mode: TensorMode, grid: Grid) -> None:
    pair = LayerPair(TOKENS, 1, 36, 72)
    assert sum(run_processes(grid, sent, mode, pair)) == pytest.approx(pair.moved_elements(mode, grid))


LAYOUTS = [
    ("1d", "4x1x1x1"),
    ("4d", "2x2x2x1"),
    ("split", "1x4x1x1"),
    ("2d", "2x2x1x1"),
    ("2d-published", "4x4x1x1"),
    ("2.5d", "2x2x1x2"),
    ("2.5d", "2x2x2x1"),
    ("3d", "2x2x2x1"),
]


@pytest.mark.parametrize(("mode", "grid"), LAYOUTS)
def test_one_rank_stands_for_any_and_holds_what_the_formula_says(mode: str, grid: str, tmp_path: Path) -> None:
    out = tmp_path / "layers.json"
    words = ["bench", "layers", "--grid", grid, "--tensor-mode", mode, "--batch", "16,32", "--hidden", "64..128"]
    assert main([*words, "--seq", "8", "--device", "cpu", "--out", str(out)]) == 0
    found = read(out)
    assert (found.kind, found.status, found.grid, found.ranks) == ("layers", "ok", grid, 1)
    assert [(one.batch, one.hidden) for one in found.layers] == [(16, 64), (16, 128), (32, 64), (32, 128)]
    for one in found.layers:
        assert round(one.moved_elements) == one.moved_formula
        assert one.held_bytes == one.held_formula < one.peak_bytes


def test_a_tensor_that_is_kept_too_long_shows() -> None:
    pair, grid = LayerPair(16, 8, 64, 64), Grid(x=4)
    bench = Layers(grid, "1d", (16,), (64,), 8, "fp32")
    kept: list[torch.Tensor] = []
    with Allocated(torch.device("cpu")) as memory:
        layers = BothLayers(bench.alone(torch.device("cpu")), ALGORITHM_1, pair, "fp32")
        kept += [layers.forward(), torch.empty(1000)]
    assert memory.held_bytes == 4 * (pair.held_elements(ALGORITHM_1, grid) + 1000)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--hidden", "30", "--grid", "4x1x1x1"],
        ["--hidden", "1..x"],
        ["--batch", "0"],
        ["--seq", "0"],
        ["--grid", "2x1x1x1", "--tensor-mode", "2d"],
        ["--grid", "1x1x3x1", "--batch", "32"],
    ],
)
def test_what_does_not_divide_is_refused(wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "layers", "--device", "cpu", *wrong, "--out", str(tmp_path / "layers.json")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_numbers_double_or_are_listed() -> None:
    assert parse_counts("--batch", "32..512") == (32, 64, 128, 256, 512)
    assert parse_counts("--batch", "8,3") == (3, 8)
    with pytest.raises(UsageError):
        parse_counts("--batch", "8..4")
