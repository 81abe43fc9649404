"""With its state on the host the optimizer takes the same steps, and the device holds less."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.result.schema.gpu_check import Finding
from engine.training.optim import AdamW
from engine.training.trainer import Trainer
from engine.training_record import Training
from gpu_check.findings import passes_if
from gpu_check.steps import MODELS

STEPS = 3
BUCKET = 2**14
"""A step takes some dozen of them."""


class Steps(NamedTuple):
    """kept: weights and moments after them. peak_bytes: without what was held before; None of a processor."""

    losses: list[tuple[float, float]]
    kept: list[Tensor]
    peak_bytes: int | None


def offloaded(device: torch.device) -> Finding:
    """Compare the steps with and without."""
    return judged(taken(device, offload=False), taken(device, offload=True))


def judged(here: Steps, on_host: Steps) -> Finding:
    """Judge the steps with the offload by those without."""
    differing = "" if here.losses == on_host.losses else f"losses and norms {here.losses} and {on_host.losses}; "
    kept = sum(not torch.equal(mine, its) for mine, its in zip(here.kept, on_host.kept, strict=True))
    memory, lower = "a processor's allocator doesn't tell", True
    if here.peak_bytes is not None and on_host.peak_bytes is not None:
        memory = f"peak {here.peak_bytes / 1e6:.1f} MB without, {on_host.peak_bytes / 1e6:.1f} MB with"
        lower = on_host.peak_bytes < here.peak_bytes
    want = "the same steps to the last bit, in less memory"
    sentence = f"{differing}{kept} of {len(here.kept)} tensors differ; {memory}"
    return passes_if(not (differing or kept) and lower, "optimizer's state on the host", want, sentence)


def taken(device: torch.device, *, offload: bool) -> Steps:
    """Take the steps. Sequences are so short that even fused attention adds in one order, as in steps.repeated."""
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
    assert comm.recorder is not None
    data, training = (
        MODELS[0].task.data.synthetic(),
        Training(MODELS[0], Batch(4, 2), precision="bf16", offload=offload),
    )
    trainer = Trainer(training, data, comm, comm.recorder, optimizer=partial(AdamW, bucket=BUCKET))
    first = trainer.step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)  # what compiling took is over
    steps = [first, *(trainer.step() for _ in range(STEPS - 1))]
    peak = torch.cuda.max_memory_allocated(device) - before if on_gpu else None
    kept = [tensor for parameter, state in trainer.optimizer.state.items() for tensor in (parameter, *state.values())]
    return Steps([step[:2] for step in steps], [tensor.detach().cpu() for tensor in kept], peak)
