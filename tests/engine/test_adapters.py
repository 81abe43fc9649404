"""Networks of transformers, unmodified, train on every grid as they do alone: loss and every gradient, in float64."""

from functools import cache

import pytest
import torch
from library_models import CONFIGS, SEQUENCES, build, loss_and_gradients, tokens
from test_parity import TOLERANCE
from torch import Tensor, nn
from training import error, grid_id
from virtual_ranks import factorisations, run_ranks

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.adapters.library import understand
from engine.models.adapters.values import library_state
from engine.parallel.parallelize import parallelize
from engine.parallel.serial_state import full_gradients
from engine.precision import Precision

pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[peers]'")

FAMILIES = ("llama", "gpt2", "qwen3", "neox")
SOME = (Grid(2, 2, 2, 1), Grid(1, 1, 4, 2), Grid(8, 1, 1, 1))


@cache
def reference(name: str) -> tuple[nn.Module, float, dict[str, Tensor]]:
    model = build(name)
    return model, *loss_and_gradients(model)


def step(model: nn.Module, comm: Comm) -> tuple[float, dict[str, Tensor]]:
    """Loss of the whole batch, and rank 0's gradients by their serial names."""
    parallel = parallelize(model, comm, precision=Precision.named("fp64"), seed=0)
    share = SEQUENCES // comm.grid.batch_split
    first = (comm.coords.data * comm.grid.z + comm.coords.z) * share
    whole = tokens()
    batch = whole[first : first + share]
    parallel.start_step()
    loss = parallel.loss(batch[:, :-1], batch[:, 1:], divisor=whole[:, 1:].numel())
    loss.backward()
    parallel.finish_step()
    return parallel.sum_over_batch(loss.detach().clone()).item(), full_gradients(parallel)


@pytest.mark.parametrize(
    ("name", "grid"),
    [(name, grid) for name in CONFIGS for grid in (factorisations() if name in FAMILIES else SOME)],
    ids=lambda value: value if isinstance(value, str) else grid_id(value),
)
def test_a_librarys_network_trains_on_every_grid_as_it_does_alone(name: str, grid: Grid) -> None:
    model, loss, gradients = reference(name)
    ours, serial = run_ranks(grid, lambda comm: step(model, comm))[0]
    assert error(torch.tensor(ours), torch.tensor(loss)) < TOLERANCE
    found = library_state(understand(model).stored, serial)
    assert found.keys() == gradients.keys()
    for tensor, gradient in gradients.items():
        assert gradient.abs().max() > 1e-5, "a gradient that vanishes compares nothing"
        assert error(found[tensor], gradient) < TOLERANCE, tensor
