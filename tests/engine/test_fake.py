"""A whole training step of one rank of any grid, on the meta device, with nobody to talk to."""

import pytest
import torch
from test_comm import fake_group
from test_volume import SMALL, closed_form
from training import SEED, Case, build, grid_id

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.overlap.flags import ALL
from engine.parallel.parallelize import parallelize
from engine.precision import Precision
from engine.training.optim import clip_gradients, gradient_norm


@pytest.mark.parametrize("grid", [Grid(2, 2, 2, 2), Grid(3, 2, 1, 2), Grid(2, 1, 1, 4)], ids=grid_id)
def test_a_step_on_the_meta_device_sends_what_the_closed_form_says(grid: Grid) -> None:
    case = Case(SMALL, sequences=16, micro_batches=2, checkpoint=True, precision="bf16", overlap=ALL)
    recorder = Recorder(timing=False)
    with fake_group(grid, grid.size - 1):
        comm = Comm(grid, device="meta", recorder=recorder)
        precision = Precision.named(case.precision)
        model = parallelize(build(case), comm, precision=precision, seed=SEED, overlap=ALL, device="meta")
        share = torch.arange(case.sequences // grid.batch_split, device="meta")
        total = torch.zeros((), dtype=torch.float64, device="meta")
        recorder.start_step("all")
        model.start_step(case.micro_batches)
        for rows in share.chunk(case.micro_batches):
            model.module.position.sequences = rows
            tokens_BS = torch.zeros(len(rows), case.config.sequence, dtype=torch.int64, device="meta")
            loss = model.loss(tokens_BS, tokens_BS)
            loss.backward()
            total += loss.detach()
        model.finish_step()
        model.sum_over_batch(total)
        recorder.end_step()
        clip_gradients(model, gradient_norm(model), 1.0)
        torch.optim.AdamW(model.parameters()).step()
    expected = closed_form(case, grid)
    assert {key: tally.calls for key, tally in recorder.total.tallies.items()} == expected.calls
    assert {key: tally.num_bytes for key, tally in recorder.total.tallies.items()} == expected.num_bytes
