"""Gradients on their way into the flat buffer: every contribution counts once, whenever it comes."""

import pytest
import torch
from test_prefetch import TILE, Watched, some_weights
from torch import nn
from training import grid_id
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm, Kind, Lane
from engine.grid import Axis, Grid
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.tasks import ONE_BY_ONE, Direction, StageTask
from engine.precision import Precision

EAGER = Overlap(ors=True, data=True, reduce_window=2, bucket_bytes=1)
Z, DATA, BOTH = Grid(1, 1, 2, 1), Grid(1, 1, 1, 2), Grid(1, 1, 2, 2)
FP64, MIXED = Precision.parse("fp64"), Precision.parse("bf16")


class Model:
    """Four weights, perhaps a replicated parameter, and their schedule, on one rank."""

    def __init__(self, comm: Comm, overlap: Overlap, precision: Precision, *, replicated: bool = False) -> None:
        assert isinstance(comm, Watched)
        self.comm = comm.watch()
        self.weights = some_weights(comm, 4)
        self.replicated = [nn.Parameter(torch.ones(3, dtype=precision.master))] if replicated else []
        for weight in self.weights:
            weight.shard.data = weight.shard.data.to(precision.master)
        self.schedule = WeightSchedule(comm, self.weights, self.replicated, precision, overlap)
        self.expected = [0] * 4

    def start_step(self, passes: int = 1) -> None:
        self.comm.abandon()
        self.schedule.abort_step()
        self.schedule.start_step(ONE_BY_ONE.order(0, 1, passes).known)
        self.expected = [0] * 4

    def run_pass(self, *numbers: int) -> list[int]:
        """Go backward by these weights; return the sums over data in flight after each."""
        self.schedule.start_task(StageTask(Direction.BACKWARD, 0))
        found = []
        for number in numbers:
            self.give(number, number + 1)
            found.append(self.comm.now[Axis.DATA, Lane.MAIN])
        return found

    def give(self, number: int, value: int, dtype: torch.dtype | None = None) -> None:
        """Add a contribution of that value from every rank."""

        def fill(out: torch.Tensor, *, add: bool) -> None:
            assert out.shape == TILE
            out.copy_(out + value if add else torch.full(TILE, value))

        self.schedule.accumulate(self.weights[number], fill, dtype)
        self.expected[number] += value * self.comm.grid.size

    def finish(self) -> None:
        self.schedule.finish_step()
        for weight, expected in zip(self.weights, self.expected, strict=True):
            assert weight.shard.grad is not None
            assert weight.shard.grad.eq(expected).all(), weight.placement.name
        assert not +self.comm.now


def on_each_rank(grid: Grid, work, overlap: Overlap = EAGER, precision: Precision = FP64):  # type: ignore[no-untyped-def]
    return run_ranks(grid, lambda comm: work(Model(comm, overlap, precision)), of=Watched)[0]


@pytest.mark.parametrize("precision", [FP64, MIXED], ids=["fp64", "mixed"])
@pytest.mark.parametrize("overlap", [Overlap(), EAGER], ids=str)
@pytest.mark.parametrize("grid", [Grid(), Z, DATA, BOTH], ids=grid_id)
def test_all_that_is_given_counts_once_and_what_is_not_used_has_no_gradient(
    grid: Grid, overlap: Overlap, precision: Precision
) -> None:
    def work(model: Model) -> None:
        for used in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 1, 0, 2), (2, 3)):
            model.start_step(2)
            model.run_pass(*used)
            model.run_pass(*used)
            model.finish()

    on_each_rank(grid, work, overlap, precision)


@pytest.mark.parametrize("precision", [FP64, MIXED], ids=["fp64", "mixed"])
@pytest.mark.parametrize("grid", [DATA, BOTH], ids=grid_id)
def test_what_comes_after_its_weights_sum_over_data_has_begun_is_not_lost(grid: Grid, precision: Precision) -> None:
    def work(model: Model) -> None:
        model.start_step()
        model.run_pass(0, 1, 2, 3)
        model.finish()
        model.start_step()
        assert model.run_pass(0, 1, 2, 3)[-1] >= 2
        model.give(0, 5)
        model.give(1, 6)
        model.give(0, 7, precision.master)
        model.finish()
        model.start_step()
        model.run_pass(0, 1, 2, 3)
        model.finish()

    on_each_rank(grid, work, precision=precision)


def test_a_tied_weights_sum_over_data_begins_once_both_contributions_have_landed() -> None:
    def work(model: Model) -> list[list[int]]:
        found = []
        for _ in range(2):
            model.start_step(2)
            found.append(model.run_pass(0, 0, 1, 2, 3))
            found.append(model.run_pass(0, 0, 1, 2, 3))
            model.finish()
        return found

    window_of_two = [0, 0, 0, 1, 2]
    assert on_each_rank(BOTH, work) == [[0] * 5, window_of_two] * 2
    at_once = [0, 1, 2, 3, 4]
    assert on_each_rank(DATA, work) == [[0] * 5, at_once] * 2


def test_a_weight_once_used_less_often_is_expected_as_often_as_before() -> None:
    def work(model: Model) -> list[list[int]]:
        found = []
        for used in ((0, 0), (0,), (0, 0)):
            model.start_step()
            found.append(model.run_pass(*used))
            model.finish()
        return found

    assert on_each_rank(DATA, work) == [[0, 0], [0], [0, 1]]


@pytest.mark.parametrize(("overlap", "most"), [(Overlap(), 0), (Overlap(ors=True, reduce_window=2), 2)], ids=str)
def test_without_ors_each_reduce_scatter_is_waited_for_where_it_is_issued(overlap: Overlap, most: int) -> None:
    def work(model: Model) -> int:
        model.start_step()
        model.run_pass(0, 1, 2, 3)
        flying = model.comm.now[Axis.Z, Lane.MAIN]
        model.finish()
        return flying

    assert on_each_rank(Z, work, overlap) == most


def test_what_is_in_flight_follows_the_flags_that_the_step_has() -> None:
    flags = [EAGER, Overlap(), Overlap(ors=True, reduce_window=3), Overlap(data=True, bucket_bytes=1), EAGER]

    def work(model: Model) -> list[tuple[int, int]]:
        """Return reduce-scatters and sums over data in flight at the end of each backward, but the first one's."""
        found = []
        for overlap in [Overlap(), *flags]:
            model.schedule.switch(overlap)
            model.start_step()
            summing = model.run_pass(0, 1, 2, 3)[-1]
            found.append((model.comm.now[Axis.Z, Lane.MAIN], summing))
            model.finish()
        return found[1:]

    assert on_each_rank(BOTH, work, Overlap()) == [(2, 2), (0, 0), (3, 0), (0, 4), (2, 2)]


def test_neighbours_are_summed_in_one_bucket_until_it_is_full() -> None:
    def work(model: Model) -> list[list[int]]:
        found = []
        for order in ((3, 2, 1, 0), (3, 2, 1, 0), (0, 1, 2, 3), (0, 2, 1, 3)):
            model.start_step()
            found.append(model.run_pass(*order))
            model.finish()
        return found

    two_weights = 2 * 6 * 8
    overlap = Overlap(data=True, bucket_bytes=two_weights)
    assert on_each_rank(DATA, work, overlap) == [[0] * 4, [0, 1, 1, 2], [0, 1, 1, 2], [0, 1, 2, 2]]
    without = Overlap(data=False, bucket_bytes=two_weights)
    assert on_each_rank(DATA, work, without) == [[0] * 4] * 4


@pytest.mark.parametrize(("grid", "overlap"), [(Z, EAGER), (DATA, Overlap(bucket_bytes=1))], ids=["z", "data"])
def test_without_early_sums_over_data_all_is_one_piece(grid: Grid, overlap: Overlap) -> None:
    def work(model: Model) -> list[int]:
        sizes: list[int] = []
        model.start_step()
        model.run_pass(0, 1, 2, 3)
        model.schedule.finish_step(lambda start, stop: sizes.append(stop - start))
        return sizes

    assert on_each_rank(grid, work, overlap) == [4 * 6 // grid.z]


def test_micro_batches_are_summed_in_the_master_dtype_and_nothing_rounds_them_but_a_sum_over_data() -> None:
    def work(model: Model) -> float:
        model.start_step(2)
        model.run_pass(0)
        model.run_pass()
        model.give(0, 256)
        model.schedule.finish_step()
        return model.schedule.flat_gradients[0].item()

    assert on_each_rank(Grid(), work, precision=MIXED) == 257
    assert on_each_rank(Z, work, precision=MIXED) == 2 * 257
    assert on_each_rank(DATA, work, precision=MIXED) == 2 * 256


def test_a_first_contribution_is_written_and_summed_where_it_stays_if_the_dtypes_allow() -> None:
    class Destinations(Watched):
        """Comm that notes whether each reduce-scatter was told where its result goes."""

        told: list[bool]

        def issue(self, kind, *others, out=None, **rest):  # type: ignore[no-untyped-def]
            if kind is Kind.REDUCE_SCATTER:
                self.told.append(out is not None)
            return super().issue(kind, *others, out=out, **rest)

    def work(comm: Comm, precision: Precision) -> list[bool]:
        assert isinstance(comm, Destinations)
        comm.told = []
        model = Model(comm, Overlap(), precision)
        model.start_step()
        model.run_pass(0, 0, 1)
        model.finish()
        return comm.told

    for grid, precision, told in [
        (Z, FP64, [True, False, True]),
        (Z, MIXED, [False, False, False]),
        (Grid(), FP64, []),
    ]:
        assert run_ranks(grid, lambda comm, p=precision: work(comm, p), of=Destinations)[0] == told  # type: ignore[misc]


@pytest.mark.parametrize("replicated", [False, True])
def test_parameters_are_handed_out_once_in_pieces_whose_gradients_are_final(replicated: bool) -> None:
    def work(comm: Comm) -> list[int]:
        model = Model(comm, EAGER, FP64, replicated=replicated)
        sizes: list[int] = []
        for _ in range(2):
            model.start_step(2)
            for _ in range(2):
                model.run_pass(0, 1, 2, 3)
                for parameter in model.replicated:
                    parameter.grad += 2  # type: ignore[operator]
            model.give(1, 5)  # late
            values = dict(zip(model.weights, model.expected, strict=True))
            final = {weight.shard: value for weight, value in values.items()}
            final.update((parameter, 2 * 2 * comm.grid.size) for parameter in model.replicated)
            pieces = {model.schedule.flat.places[parameter]: value for parameter, value in final.items()}
            sizes.clear()

            def take(start: int, stop: int, final=pieces) -> None:  # type: ignore[no-untyped-def]
                sizes.append(stop - start)
                assert model.schedule.flat_gradients[start:stop].eq(final.pop((start, stop))).all()

            model.schedule.finish_step(take)
            assert not pieces
        return sizes

    assert run_ranks(BOTH, work, of=Watched)[0] == [6 // BOTH.z] * 4 + [3] * replicated


@pytest.mark.parametrize("where", ["in-flight", "bucket"])
def test_an_aborted_step_leaves_nothing_to_the_next(where: str) -> None:
    def work(model: Model) -> None:
        for _ in range(2):
            model.start_step()
            model.run_pass(0, 1, 2, 3)
            model.finish()
        for used in ((0,), (0, 1), (0, 1, 2, 3), (2, 0, 0)):
            model.start_step()
            model.run_pass(*used)
            model.give(0, 9)
            model.start_step()
            model.run_pass(1, 3)
            model.finish()

    bucket_bytes = 1 if where == "in-flight" else 1e6
    for grid in (Z, DATA, BOTH):
        on_each_rank(grid, work, Overlap(ors=True, data=True, reduce_window=2, bucket_bytes=bucket_bytes))
