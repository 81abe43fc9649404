"""parallelize takes every layer of a serial network, or says which it can't; and what a parallel model says."""

import pytest
import torch
from test_parity import SMALL
from torch import nn
from training import Case, start

from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Grid
from engine.layers.registry import LAYERS
from engine.models.gpt.config import GPTConfig
from engine.models.serial import SerialModel
from engine.overlap.flags import Overlap
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.precision import Precision


class Altered(GPTConfig):
    """GPT one of whose norms is something else."""

    layer: nn.Module = nn.Identity()

    def serial(self) -> SerialModel:
        model = super().serial()
        model.norm = self.layer
        return model


class Scale(nn.Module):
    """Layer of a family's own, serial and on the grid alike."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias


def _parallelize(layer: nn.Module) -> ParallelModel:
    class WithLayer(Altered):
        pass

    WithLayer.layer = layer
    config = WithLayer("altered", layers=1, hidden=8, heads=2, vocabulary=8, sequence=4)
    return parallelize(config, Comm(Grid()), precision=Precision.parse("fp32"), seed=0)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(8, device="meta"), nn.Identity()], ids=lambda layer: type(layer).__name__
)
def test_parameters_that_no_layer_of_the_grid_takes_are_named(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"altered: \['norm.bias', 'norm.w"):
        _parallelize(layer)


def test_a_layer_that_another_room_adds_is_made_of_this_ranks_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    serial = Scale(*(nn.Parameter(torch.empty(8, device="meta")) for _ in range(2)))
    monkeypatch.setitem(LAYERS, Scale, lambda _, local: Scale(local.parameters["weight"], local.parameters["bias"]))
    model = _parallelize(serial)
    assert model.module.norm is not serial
    assert model.local_parameters()["norm.weight"] is model.module.norm.weight
    assert not model.local_parameters()["norm.weight"].is_meta


def test_dropout_whose_masks_depend_on_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^norm "):
        _parallelize(nn.Dropout(0.1))


def test_the_cache_keeps_the_last_blocks_which_the_backward_needs_first() -> None:
    config = GPTConfig("m", layers=3, hidden=8, heads=2, vocabulary=8, sequence=4)
    with fake_group(Grid(z=2), 0):
        comm = Comm(Grid(z=2))
        overlap = Overlap(cache=2)
        model = parallelize(
            config, comm, precision=Precision.parse("fp32"), seed=0, overlap=overlap, checkpoint_every=1
        )
        kept: list[str] = []
        model.schedule.cache = lambda weights: kept.extend(w.placement.name for w in weights)  # type: ignore[method-assign]
        model.cache_blocks(2)
    assert {name.split(".")[1] for name in kept} == {"1", "2"}
    assert len(kept) == 2 * 4
    assert model.cached_blocks == 2


@pytest.mark.parametrize(("told", "end"), [(1, None), (2, "finish_step"), (2, "abort_step")])
def test_a_loss_is_refused_beyond_the_steps_micro_batches_and_after_its_end(told: int, end: str | None) -> None:
    model = start(Case(SMALL), Comm(Grid()))
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    model.start_step(told)
    model.loss({"tokens": tokens, "targets": tokens}).backward()
    if end is not None:
        getattr(model, end)()
    with pytest.raises(RuntimeError, match="start_step"):
        model.loss({"tokens": tokens, "targets": tokens})
