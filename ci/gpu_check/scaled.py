"""In fp16 the engine skips the steps that plain PyTorch's GradScaler skips on the same device, at the same scales."""

import math
from typing import NamedTuple

import torch

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.peers.comparison import Case
from engine.peers.ours import trainer
from engine.peers.peer import Tensors, adamw, mean_divisor, serial_loss, serial_model
from engine.peers.timed_side import on_batches
from engine.result.metrics import relative_difference
from engine.result.schema.gpu_check import Finding
from engine.training.trainer import LossScale
from engine.training_record import OptimConfig
from gpu_check.findings import passes_if
from gpu_check.steps import MODELS

STEPS = 7
SCALE = LossScale(1.25 * 2.0**20, interval=2)
"""Every third step overflows. The largest gradient is 18 % or more away from the end of fp16 in each, so that it is on
the same side of it on any device.
"""
WITHIN = 2.0**-9
"""Losses may differ by so much, four roundings of fp16: they are means in fp32 of many logits."""
CASE = Case(MODELS[1], Batch(4), precision="fp16", optim=OptimConfig(learning_rate=1e-3, clip=0.0))


class Scaled(NamedTuple):
    """A step at this loss scale, and whether it was skipped."""

    loss: float
    scale: float
    skipped: bool


def scaled(device: torch.device) -> Finding:
    """Compare the steps of both."""
    return judged(engines(device), by_pytorch(device))


def judged(ours: list[Scaled], theirs: list[Scaled]) -> Finding:
    """Judge our steps by those of GradScaler, of which some are skipped and some taken."""
    other = sum(mine[1:] != plain[1:] for mine, plain in zip(ours, theirs, strict=True))
    worst = max(relative_difference(mine.loss, plain.loss) for mine, plain in zip(ours, theirs, strict=True))
    skipped = [step.skipped for step in theirs]
    good = not other and worst <= WITHIN and 0 < sum(skipped) < len(skipped)
    want = f"steps and scales as by torch.amp.GradScaler, losses at most {WITHIN:.2g} off"
    how = f"{sum(skipped)} of {len(skipped)} skipped, scales {', '.join(f'{step.scale:g}' for step in ours)}"
    sentence = f"{how}; losses off by {worst:.1e}"
    return passes_if(good, "steps skipped in fp16", want, sentence, figure=other, unit="others")


def engines(device: torch.device) -> list[Scaled]:
    """Take the engine's steps."""
    comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
    training = trainer(CASE, comm)
    training.loss_scale = SCALE
    steps = [training.step() for _ in range(STEPS)]
    return [Scaled(step.loss, step.loss_scale or math.nan, step.skipped) for step in steps]


def by_pytorch(device: torch.device) -> list[Scaled]:
    """Take plain PyTorch's in fp16 throughout, beside fp32 masters."""
    low, masters = serial_model(CASE, device).half(), serial_model(CASE, device)
    optimizer = adamw(CASE.optim, masters.parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE.value, growth_interval=SCALE.interval)

    def step(batch: Tensors) -> Scaled:
        low.zero_grad()
        loss = serial_loss(low, low, batch, mean_divisor(CASE, batch))
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        for master, parameter in zip(masters.parameters(), low.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        scaler.step(optimizer)
        scaler.update()
        low.load_state_dict(masters.state_dict())
        return Scaled(loss.item(), scale, scaler.get_scale() < scale)

    take = on_batches(step, CASE, range(CASE.batch.sequences), device)
    return [take() for _ in range(STEPS)]
