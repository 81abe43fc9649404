"""All overlap flags take turns with none in one process, on one rank, where there is no communication to hide."""

import time

import torch

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.contest.overlap import compare_overlaps
from engine.contest.rounds import Rounds
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.overlap.flags import ALL, Overlap
from engine.peers.comparison import Case
from engine.peers.ours import trainer
from engine.result.schema.gpu_check import Finding
from engine.training.checks import ContestSetup
from engine.training_record import OptimConfig
from gpu_check.findings import reported
from gpu_check.sizes import ONE_RANK

ROUNDS = {"cpu": Rounds(rounds=3, steps=1, warmup=1), "cuda": Rounds(rounds=6, steps=3, warmup=3)}


def cost(device: torch.device) -> Finding:
    """Return the paired ratio of their step times. Nothing is clipped, so that the optimizer steps by bucket."""
    chosen = ONE_RANK[device.type]
    case = Case(
        chosen.choice.resolve(), Batch(chosen.sequences), precision=chosen.precision, optim=OptimConfig(clip=0.0)
    )
    comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
    variants = (Overlap(), ALL)
    own = trainer(case, comm, overlaps=variants)
    setup = ContestSetup(own, lambda grid: comm, lambda training, comm, tune_matmul=None: own, [], time.monotonic())
    none, full = compare_overlaps(variants, ROUNDS[device.type], setup).sides
    assert full.over_base is not None
    ratio = full.over_base
    sentence = f"{ratio}, {none.time_per_iteration_s * 1e3:.2f} ms a step of {chosen.words} without"
    return reported("all overlap flags on one rank", sentence, ratio.ratio)
