"""GroupNorm on the grid is PyTorch's, however an axis splits the channels."""

import doctest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm, Kind
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.layers import group_norm
from engine.layers.group_norm import GroupNorm, channel_counts, find_straddling
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.placement import Constant, Placement
from engine.precision import Precision

GROUPS, EPS, TOLERANCE = 32, 1e-5, 1e-10
IMAGES, SIDE = 2, 3


def _placement(parts: Sequence[int], axis: Axis | None = Axis.Y) -> Placement:
    return Placement("norm.weight", (sum(parts),), (axis,), False, Constant(1.0), {0: tuple(parts)})


@dataclass
class Case:
    """Norm of whole tensors; modulated: whether it scales and shifts by image."""

    parts: Sequence[int]
    ranks: int
    axis: Axis = Axis.Y
    modulated: bool = False
    placement: Placement = field(init=False)
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.placement, self.grid = _placement(self.parts, self.axis), Grid().sized({self.axis: self.ranks})

    def tensors(self) -> list[Tensor]:
        generator, channels = torch.Generator().manual_seed(0), sum(self.parts)
        shapes = [(IMAGES, channels, SIDE, SIDE), (channels,), (channels,), *[(IMAGES, channels)] * 2]
        shapes = shapes if self.modulated else shapes[:3]
        return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]

    def own(self, whole: Tensor, comm: Comm) -> Tensor:
        """Return this rank's channels."""
        rectangles, dim = self.placement.rectangles(comm.grid, comm.coords), _dim(whole)
        return torch.cat([whole.narrow(dim, *rectangle.offsets, *rectangle.sizes) for rectangle in rectangles], dim)

    def join(self, of_ranks: Sequence[tuple[Comm, Tensor]], like: Tensor) -> Tensor:
        """Put the ranks' parts of a tensor together."""
        whole = torch.full_like(like, torch.nan)
        for comm, own in of_ranks:
            for rectangle in self.placement.rectangles(comm.grid, comm.coords):
                part = own.narrow(_dim(own), rectangle.start, *rectangle.sizes)
                whole.narrow(_dim(own), *rectangle.offsets, *rectangle.sizes).copy_(part)
        return whole

    def layer(self, comm: Comm, weight: Tensor, bias: Tensor, precision: str) -> GroupNorm:
        parameters = [nn.Parameter(self.own(whole, comm)) for whole in (weight, bias)]
        schedule = WeightSchedule(comm, [], parameters, Precision.parse(precision), Overlap())
        return GroupNorm(comm, schedule, self.placement, *parameters, GROUPS, EPS)


def _dim(tensor: Tensor) -> int:
    """Return the dim of its channels."""
    return min(tensor.dim() - 1, 1)


def _of_the_output(y: Tensor) -> Tensor:
    """Return a gradient by the output that differs everywhere."""
    return torch.linspace(-2, 3, y.numel(), dtype=y.dtype).view(y.shape).sin()


def _serial(case: Case) -> list[Tensor]:
    """Return output and the gradients of all tensors, by PyTorch."""
    x, weight, bias, *modulation = whole = [tensor.requires_grad_() for tensor in case.tensors()]
    y = F.group_norm(x, GROUPS, weight, bias, EPS)
    if modulation:
        scale, shift = (tensor[:, :, None, None] for tensor in modulation)
        y = y * (1 + scale) + shift
    return [y.detach(), *torch.autograd.grad(y, whole, _of_the_output(y))]


class Wrong:
    """Mutation of one call, with the kinds of all."""

    def __init__(self, number: int = 0, mutation: str = "") -> None:
        self.number, self.mutation, self.kinds = number, mutation, dict[int, Kind]()

    def __call__(self, kind: Kind, axis: Axis, number: int) -> str | None:
        self.kinds[number] = kind
        return self.mutation if number == self.number else None


def _error(case: Case, mutate: Wrong) -> float:
    """Return the largest difference between the grid's output or gradients and PyTorch's."""

    def train(comm: Comm) -> tuple[Comm, list[Tensor]]:
        x, weight, bias, *modulation = case.tensors()
        layer = case.layer(comm, weight, bias, "fp64")
        inputs = [case.own(whole, comm).requires_grad_() for whole in (x, *modulation)]
        y = layer(*inputs)
        y.backward(case.own(_of_the_output(torch.empty_like(x)), comm))
        gradients = [tensor.grad for tensor in (inputs[0], layer.weight, layer.bias, *inputs[1:])]
        return comm, [y.detach(), *gradients]  # type: ignore[list-item]

    ranks, worst = run_ranks(case.grid, train, mutate=mutate), 0.0
    for number, exact in enumerate(_serial(case)):
        ours = case.join([(comm, found[number]) for comm, found in ranks], exact)
        difference = (ours - exact).abs().max().item()
        worst = max(worst, difference) if difference == difference else torch.inf
    return worst


def _cases() -> Iterator[Case]:
    for parts in ([96], [64], [48, 48], [32, 32], [96, 96], [64, 32], [128, 64], [192, 96], [24, 12, 60]):
        for ranks in (1, 2, 3, 4):
            if all(part % ranks == 0 for part in parts):
                yield Case(parts, ranks)
    yield Case([96], 3, Axis.X)
    yield Case([96], 2, modulated=True)
    yield Case([64, 32], 2, Axis.X, modulated=True)


@pytest.mark.parametrize("case", list(_cases()), ids=lambda case: f"{case.parts}-{case.axis}{case.ranks}")
def test_output_and_gradients_are_pytorchs_and_groups_on_one_rank_cost_nothing(case: Case) -> None:
    calls = Wrong()
    assert _error(case, calls) < TOLERANCE
    kinds = [Kind.ALL_GATHER, Kind.ALL_REDUCE] if find_straddling(case.placement, case.grid, GROUPS) else []
    assert list(calls.kinds.values()) == kinds


def test_one_wrong_collective_is_noticed() -> None:
    case = Case([64, 32], 2)
    for number, mutation in product((1, 2), ("drop", "twice")):
        assert _error(case, Wrong(number, mutation)) > 1e-3, f"{mutation} of call {number}"


@pytest.mark.parametrize("parts", [[96], [96, 96], [192, 96]], ids=str)
def test_a_rank_sends_two_numbers_an_image_and_straddling_group_each_way(parts: list[int]) -> None:
    case = Case(parts, 3)

    def num_bytes(comm: Comm) -> list[int]:
        x, weight, bias = (whole.float() for whole in case.tensors())
        layer = case.layer(comm, weight, bias, "fp32")
        assert comm.recorder is not None
        comm.recorder.start_step("all")
        layer(case.own(x, comm).requires_grad_()).sum().backward()
        comm.recorder.end_step()
        return [tally.num_bytes for tally in comm.recorder.total.tallies.values()]

    of_one = 4 * 2 * IMAGES * len(find_straddling(case.placement, case.grid, GROUPS))
    assert run_ranks(case.grid, num_bytes, record=True) == [[of_one, of_one]] * 3


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("parts", [[96], [192, 96]], ids=str)
def test_it_keeps_fp32_digits_far_from_zero(parts: list[int], ranks: int) -> None:
    """Mean 100, deviation 1: the sum of squares would lose four digits of seven."""
    case, channels = Case(parts, ranks), sum(parts)
    x = torch.randn(4, channels, 8, 8, generator=torch.Generator().manual_seed(0)) + 100
    ours, exact = _plain(case, x, "fp32")
    native = (F.group_norm(x, GROUPS, eps=EPS) - exact).abs().max()
    assert (ours - exact).abs().max() < 4 * native + 1e-6
    assert native < 1e-4


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_norm_of_bf16_rounds_its_statistics_no_more_than_its_output(ranks: int) -> None:
    x = (torch.randn(4, 96, 8, 8, generator=torch.Generator().manual_seed(0)) + 1).bfloat16()
    ours, exact = _plain(Case([96], ranks), x, "bf16")
    assert ours.dtype == torch.bfloat16
    assert ((ours - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()


def _plain(case: Case, x: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Return the grid's norm with weights of one, and the exact one."""

    def norm(comm: Comm) -> tuple[Comm, Tensor]:
        layer = case.layer(comm, torch.ones(x.shape[1]), torch.zeros(x.shape[1]), precision)
        return comm, layer(case.own(x, comm)).detach()

    return case.join(run_ranks(case.grid, norm), x), F.group_norm(x.double(), GROUPS, eps=EPS)


def test_a_group_straddles_ranks_where_it_is_cut() -> None:
    def shared(parts: Sequence[int], ranks: int) -> list[int]:
        return find_straddling(_placement(parts), Grid(y=ranks), GROUPS)

    for width in (96, 192, 384):
        for ranks in (2, 4, 8, 16):
            assert shared([width], ranks) == shared([width, width], ranks) == []
            assert shared([2 * width, width], ranks)
        assert shared([width], 32) == []
        assert shared([width, width], 32)
        assert [bool(shared(parts, 3)) for parts in ([width], [width, width], [2 * width, width])] == [True] * 3
    assert find_straddling(_placement([96], None), Grid(y=3), GROUPS) == []
    assert doctest.testmod(group_norm).failed == 0


def test_each_channel_counts_once() -> None:
    counts = channel_counts(_placement([24, 12, 60]), Grid(y=4), GROUPS)
    assert [sum(count[group] for count in counts) for group in range(GROUPS)] == [3] * GROUPS
    assert [count.total() for count in counts] == [24] * 4


@pytest.mark.parametrize(
    ("parts", "ranks", "groups", "said"),
    [
        ([80], 1, 32, "80 channels, which can't be 32 groups"),
        ([96], 1, 0, "can't be 0 groups"),
        ([64, 32], 3, 32, "64 is not a multiple of 3"),
    ],
)
def test_channels_that_groups_or_an_axis_dont_divide_are_refused(
    parts: list[int], ranks: int, groups: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        find_straddling(_placement(parts), Grid(y=ranks), groups)
