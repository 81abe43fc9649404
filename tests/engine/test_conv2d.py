"""Convolutions on the grid equal PyTorch's own: what they give, and every gradient."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from test_prefetch import Watched
from torch import nn
from training import grid_id
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm, Kind, Lane
from engine.grid import SPLITTING_FEATURES, Axis, Grid
from engine.layers.conv2d import Conv2d
from engine.layers.local import Local
from engine.layers.matmul import PLAIN
from engine.layers.registry import layer_of_grid
from engine.overlap.flags import ALL, Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.tasks import Direction, StageTask
from engine.overlap.weight import ShardedWeight
from engine.placement import Constant, Placement
from engine.precision import Precision
from engine.tensor_mode import ALGORITHM_1

TOLERANCE = 1e-10
K, N, IMAGES, SIDE = 6, 12, 4, 5
MICRO_BATCHES, STEPS = 2, 2
GRIDS = [Grid(), Grid(x=2), Grid(y=2), Grid(z=2), Grid(2, 2, 2, 1), Grid(x=3)]
SPLITS = {
    "normal": SPLITTING_FEATURES,
    "transposed": SPLITTING_FEATURES[::-1],
    "in": (Axis.Y, None),
    "out": (None, Axis.Y),
}
NONE = Overlap()

Part = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Convolution, and how it trains. split: the axes of its output and of its input channels."""

    kernel: int = 3
    stride: int = 1
    padding: int = 1
    split: str = "normal"
    bias: bool = True
    overlap: Overlap = NONE
    gathers_again: bool = False
    deferring: bool = False
    channels_last: bool = False

    def serial(self) -> nn.Conv2d:
        layer = nn.Conv2d(K, N, self.kernel, self.stride, self.padding, bias=self.bias, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=generator)
        return layer

    def placements(self, serial: nn.Conv2d) -> dict[str, Placement]:
        out_axis, in_axis = SPLITS[self.split]
        split = (out_axis, in_axis, None, None)
        shape = tuple(serial.weight.shape)
        placements = {"weight": Placement("conv.weight", shape, split, True, Constant(0))}
        if self.bias:
            placements["bias"] = Placement("conv.bias", (N,), (out_axis,), False, Constant(0))
        return placements


SHAPES = [Case(3, 1, 1), Case(3, 2, 1), Case(1, 1, 0), Case(1, 2, 0)]


def shape_id(case: Case) -> str:
    return f"{case.kernel}x{case.kernel}-stride-{case.stride}-padding-{case.padding}"


def batch(step: int) -> torch.Tensor:
    shape, generator = (MICRO_BATCHES, IMAGES, K, SIDE, SIDE), torch.Generator().manual_seed(step)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def slope(output: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-2, 3, output.numel(), dtype=torch.float64).view_as(output).sin()


def own_channels(comm: Comm, axis: Axis | None) -> Part:
    """Return what takes a rank's rows and channels of whole images."""

    def part(whole: torch.Tensor) -> torch.Tensor:
        rows = whole.chunk(comm.grid.z)[comm.coords.z]
        return rows if axis is None else rows.chunk(comm.grid[axis], dim=1)[comm.coords[axis]]

    return part


def start(case: Case, comm: Comm) -> tuple[Conv2d, WeightSchedule]:
    serial = case.serial()
    placements, parameters = case.placements(serial), {}
    for name, placement in placements.items():
        local = torch.empty(placement.local_numel(comm.grid), dtype=torch.float64)
        for rectangle in placement.rectangles(comm.grid, comm.coords):
            rectangle.view(local).copy_(serial.get_parameter(name).detach()[rectangle.region])
        parameters[name] = nn.Parameter(local)
    weight = ShardedWeight(placements["weight"], parameters["weight"], placements["weight"].tile_shape(comm.grid))
    replicated = [parameters["bias"]] if case.bias else []
    schedule = WeightSchedule(
        comm,
        [weight],
        replicated,
        Precision.parse("fp64"),
        case.overlap,
        gathered_again=[weight] if case.gathers_again else (),
    )
    layer = layer_of_grid(
        serial, Local("conv", comm, schedule, placements, parameters, {"weight": weight}, PLAIN, ALGORITHM_1)
    )
    assert isinstance(layer, Conv2d)
    return layer, schedule


def step(
    layer: Conv2d, schedule: WeightSchedule, case: Case, number: int, into: Part, out: Part, serial: nn.Conv2d
) -> float:
    """Make a step of all micro-batches, on a rank and serially; return the largest error of all that can be
    compared.
    """
    errors: list[float] = []

    def compare(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> None:
        assert ours is not None
        assert theirs is not None
        assert ours.shape == theirs.shape
        errors.append(((ours - theirs).abs().max() / theirs.abs().max()).nan_to_num(torch.inf).item())

    directions = [Direction.FORWARD, Direction.BACKWARD, *[Direction.WEIGHT] * case.deferring]
    tasks = [StageTask(direction, micro) for micro in range(MICRO_BATCHES) for direction in directions]
    schedule.start_step(tasks, deferring=case.deferring)
    serial.zero_grad()
    for micro, images in enumerate(batch(number)):
        whole = images.clone().requires_grad_()
        expected = serial(whole)
        expected.backward(slope(expected))
        own = into(images).contiguous(
            memory_format=torch.channels_last if case.channels_last else torch.contiguous_format
        )
        own = own.detach().requires_grad_()
        schedule.start_task(StageTask(Direction.FORWARD, micro))
        output = layer(own)
        compare(output.detach(), out(expected.detach()))
        schedule.start_task(StageTask(Direction.BACKWARD, micro))
        output.backward(out(slope(expected)))
        assert whole.grad is not None
        compare(own.grad, into(whole.grad))
        if case.deferring:
            schedule.start_task(StageTask(Direction.WEIGHT, micro))
    schedule.finish_step()
    grid, coords = layer.comm.grid, layer.comm.coords
    for name, placement in case.placements(serial).items():
        gradient, theirs = layer.get_parameter(name).grad, serial.get_parameter(name).grad
        assert gradient is not None
        assert theirs is not None
        for rectangle in placement.rectangles(grid, coords):
            compare(rectangle.view(gradient), theirs[rectangle.region])
    return max(errors)


def largest_error(case: Case, comm: Comm) -> float:
    """Return that of two steps: in the second one weights are gathered ahead."""
    layer, schedule = start(case, comm)
    into, out = own_channels(comm, layer.in_axis), own_channels(comm, layer.out_axis)
    return max(step(layer, schedule, case, number, into, out, case.serial()) for number in range(STEPS))


def check(case: Case, grid: Grid) -> None:
    assert max(run_ranks(grid, lambda comm: largest_error(case, comm))) < TOLERANCE


@pytest.mark.parametrize("overlap", [NONE, ALL], ids=["none", "all"])
@pytest.mark.parametrize("split", ["normal", "transposed"])
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
def test_a_convolution_on_the_grid_is_pytorchs(grid: Grid, shape: Case, split: str, overlap: Overlap) -> None:
    check(replace(shape, split=split, overlap=overlap), grid)


@pytest.mark.parametrize("split", ["in", "out"])
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_one_of_whose_channels_some_are_not_split_is_pytorchs(shape: Case, split: str) -> None:
    check(replace(shape, split=split, overlap=ALL), Grid(2, 2, 2, 1))


@pytest.mark.parametrize(
    "change",
    [{"bias": False}, {"gathers_again": True}, {"deferring": True, "gathers_again": True}, {"channels_last": True}],
    ids=lambda change: "-".join(change),
)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=shape_id)
def test_it_is_in_whatever_way_a_step_goes(shape: Case, change: dict[str, bool]) -> None:
    check(replace(shape, overlap=ALL, **change), Grid(2, 2, 2, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("mutation", ["drop", "twice"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=shape_id)
@pytest.mark.parametrize("grid", [Grid(x=2), Grid(y=2), Grid(z=2)], ids=grid_id)
def test_each_collective_dropped_or_doubled_is_noticed(grid: Grid, shape: Case, mutation: str) -> None:
    kinds: dict[int, Kind] = {}

    def error(wrong: int) -> float:
        def mutate(kind: Kind, axis: Axis, number: int) -> str | None:
            kinds[number] = kind
            return mutation if number == wrong else None

        return max(run_ranks(grid, lambda comm: largest_error(shape, comm), mutate=mutate))

    assert error(0) < TOLERANCE
    assert len(kinds) >= STEPS * MICRO_BATCHES
    assert min(map(error, list(kinds))) > 1e-3


@pytest.mark.parametrize(("overlap", "flying"), [(NONE, 0), (Overlap(oar=True), 1)], ids=str)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=shape_id)
def test_its_input_gradient_is_summed_while_its_weight_gradient_is_computed(
    shape: Case, overlap: Overlap, flying: int
) -> None:
    def work(comm: Comm) -> list[int]:
        assert isinstance(comm, Watched)
        comm.watch()
        layer, schedule = start(replace(shape, overlap=overlap), comm)
        found, accumulate = [], schedule.accumulate

        def watched(*contribution) -> None:  # type: ignore[no-untyped-def]
            found.append(comm.now[Axis.X, Lane.MAIN])
            accumulate(*contribution)

        schedule.accumulate = watched  # type: ignore[assignment, method-assign]
        schedule.start_step()
        layer(batch(0)[0].requires_grad_()).sum().backward()
        schedule.finish_step()
        return found

    assert run_ranks(Grid(x=2), work, of=Watched) == [[flying]] * 2


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=shape_id)
def test_one_whose_input_needs_no_gradient_sends_none(shape: Case) -> None:
    def work(comm: Comm) -> int:
        assert isinstance(comm, Watched)
        comm.watch()
        layer, schedule = start(replace(shape, overlap=ALL), comm)
        schedule.start_step()
        layer(batch(0)[0]).sum().backward()
        schedule.finish_step()
        return comm.all.total()

    assert run_ranks(Grid(x=2), work, of=Watched) == [0, 0]


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding_mode": "circular"}])
def test_a_convolution_that_the_grid_has_none_of_is_refused_in_one_sentence(options: dict[str, object]) -> None:
    case = Case(bias=False)
    layer, schedule = start(case, Comm(Grid()))
    weight = {"weight": layer.sharded}
    local = Local(
        "conv",
        layer.comm,
        schedule,
        case.placements(case.serial()),
        {"weight": layer.weight},
        weight,
        PLAIN,
        ALGORITHM_1,
    )
    with pytest.raises(ValueError, match="one group, no dilation"):
        layer_of_grid(nn.Conv2d(K, N, 3, **options), local)  # type: ignore[arg-type]
