"""A rank's parameters in one tensor, and their copy in the compute dtype, which no change of them leaves behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_parity import FAMILIES, SMALL
from torch.utils._python_dispatch import TorchDispatchMode
from training import Case, grid_id, start, step_parallel
from virtual_ranks import run_ranks

from engine.checkpoint import store
from engine.checkpoint.manifest import Manifest, Saved
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers.embedding import TokenEmbedding
from engine.layers.linear import Linear
from engine.models.architecture import Architecture
from engine.parallel import parallelize as building
from engine.parallel.model import ParallelModel
from engine.precision import Precision
from engine.tracing.watch import Log, Operators
from engine.training.optim import AdamW
from engine.training_record import OptimConfig

CASE = Case(SMALL, precision="bf16")
GRIDS = [Grid(), Grid(2, 1, 1, 1), Grid(1, 2, 2, 1)]


@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES.keys())
def test_all_parameters_of_one_kind_are_few_ranges_of_one_tensor(model: Architecture, grid: Grid) -> None:
    def work(comm: Comm) -> None:
        found = start(Case(model), comm)
        flat = found.schedule.flat
        for parameter, (first, stop) in flat.places.items():
            assert parameter.data_ptr() == flat.masters[first:stop].data_ptr()
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == found.flat_gradients[first:stop].data_ptr()
        assert set(flat.places) == set(found.parameters())
        matrices = found.ranges(lambda placement: len(placement.shape) > 1)
        assert [decays for decays, _, _ in matrices] == [True, False]
        assert len(found.ranges(lambda placement: (len(placement.shape) > 1, placement.replicas(grid)))) <= 5

    run_ranks(grid, work)


def test_parameters_are_built_one_by_one_where_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serial network, on the meta device, takes no memory, but is counted here."""

    class Built(Exception):
        pass

    def schedule(*given: object, **named: object) -> None:
        raise Built

    log, comm, bf16 = Log(), Comm(Grid(), device="meta"), Precision.parse("bf16")
    monkeypatch.setattr(building, "WeightSchedule", schedule)
    with Operators(log), pytest.raises(Built):
        building.parallelize(SMALL, comm, precision=bf16, seed=0, device="meta")
    numels = [placement.local_numel(Grid()) for placement in SMALL.placements().values()]
    assert log.peak <= 4 * (2 * sum(numels) + max(numels))


class Copies(TorchDispatchMode):
    """Counter of copies."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def start_step(model: ParallelModel) -> int:
    """Check that layers use the rounded parameters; return the copies that the step's start makes."""
    with Copies() as copies:
        model.start_step()
    weights = {m.sharded.shard: m.sharded for m in model.modules() if isinstance(m, Linear | TokenEmbedding)}
    for parameter in model.parameters():
        if parameter not in weights:
            assert torch.equal(model.schedule.cast(parameter), parameter.bfloat16())
        elif model.comm.grid.z == 1:
            weight = weights[parameter]
            assert torch.equal(model.schedule.gather(weight), weight.tile(parameter.bfloat16()))
    return copies.count


def trained(comm: Comm) -> tuple[ParallelModel, AdamW]:
    model = start(CASE, comm)
    optimizer = AdamW(model, OptimConfig(learning_rate=0.1))
    step_parallel(CASE, model, 0)
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
def test_what_the_optimizer_has_copied_is_not_cast_again(grid: Grid) -> None:
    def work(comm: Comm) -> list[int]:
        model, optimizer = trained(comm)
        found = [start_step(model)]
        model.abort_step()
        found.append(start_step(model))
        model.finish_step()
        for low, stop in ((0, 1000), (1000, None)):
            optimizer.step(low, stop)
        return [*found, start_step(model)]

    assert run_ranks(grid, work)[0] == [0, 1, 0]


def _writes(model: ParallelModel, optimizer: AdamW) -> None:
    with torch.no_grad():
        next(model.parameters()).add_(1)


def _steps_some(model: ParallelModel, optimizer: AdamW) -> None:
    """Step some; the others are then written to behind PyTorch's back, as other fused optimizers do."""
    model.start_step()
    model.finish_step()
    optimizer.step(0, 1000)
    model.schedule.flat.masters[1000:].data.add_(1)


def _writes_between_parts(model: ParallelModel, optimizer: AdamW) -> None:
    model.start_step()
    model.finish_step()
    optimizer.step(0, 1000)
    with torch.no_grad():
        model.schedule.flat.masters[:1000].mul_(2)
    optimizer.step(1000)


def _trains_on_with_another(model: ParallelModel, optimizer: AdamW) -> None:
    step_parallel(CASE, model, 1)
    torch.optim.AdamW(model.parameters(), lr=0.1, fused=True).step()


@pytest.mark.parametrize("change", [_writes, _steps_some, _writes_between_parts, _trains_on_with_another])
def test_a_copy_that_is_not_the_parameters_is_never_used(change: Callable[[ParallelModel, AdamW], None]) -> None:
    model, optimizer = trained(Comm(Grid()))
    change(model, optimizer)
    assert start_step(model) == 1


def test_a_checkpoint_that_is_read_into_a_trained_model_is_what_it_goes_on_from(tmp_path: Path) -> None:
    model, optimizer = trained(Comm(Grid()))
    manifest = Manifest(step=1, seed=0, batch_size=8, dtype="bf16", model={}, files={})
    to = store.Destination.claimed(tmp_path, model.comm)
    saved = Saved(store.save(to, manifest, model, optimizer.state), manifest)
    losses = []
    for _ in range(2):
        for step in (1, 2):
            losses.append(step_parallel(CASE, model, step))
            optimizer.start_step(step)
            optimizer.step()
        store.load(saved, model, optimizer.state)
    assert losses[:2] == losses[2:]
