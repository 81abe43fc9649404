"""One `engine train`: connect, train, and leave one result.json whatever happens.

Rank 0 writes a failed result before the first iteration, which the outcome replaces, so that even a run that is killed
has said so. Of several failing ranks the one with a reason of its own wins over those that only lost contact.
"""

import os
import signal
from datetime import timedelta
from types import FrameType

import torch.distributed as dist

from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device, init_process_group
from engine.measure.memory import keep_freed_memory
from engine.measure.recorder import Recorder
from engine.precision import DTYPES
from engine.result.schema import write
from engine.training.config import Plan
from engine.training.gathered import breakdown, everyones, joint_peak
from engine.training.outcome import UNFINISHED, Outcome, Terminated
from engine.training.trainer import Trainer, run_iterations


def train(plan: Plan, launch: Launch) -> int:
    """Carry out a plan on this rank; returns the exit code: 0, or 1 with a failed result."""
    config = plan.config
    device = choose_device(config.device, launch.local_rank)
    outcome = Outcome(plan, launch, device)

    def terminated(number: int, frame: FrameType | None) -> None:
        # An exception from here could end up anywhere, in a logging call for one, and be swallowed.
        outcome.write_failure(Terminated(f"Rank {launch.rank} was told to end by {signal.Signals(number).name}."))
        os._exit(1)

    signal.signal(signal.SIGTERM, terminated)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        if launch.rank == 0:
            write(outcome.failed(UNFINISHED), config.out)
        init_process_group(launch, device, timedelta(seconds=config.timeout_s))
        outcome.connected = True
        recorder = Recorder.on(device, breakdown=config.breakdown or config.timeline is not None)
        comm = Comm(plan.grid, timeout=timedelta(seconds=config.timeout_s), recorder=recorder, device=device)
        if config.measure_peak:
            outcome.measurements.peak_flops_per_s = joint_peak(comm, DTYPES[config.precision])
        run_iterations(Trainer(plan, comm, recorder), outcome.measurements)
        ranks = everyones(comm)
        times = breakdown(comm, outcome.measurements.recording, config.link_bytes_per_s)
        if launch.rank == 0:
            write(outcome.succeeded(ranks, times), config.out)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        comm.barrier()
        dist.destroy_process_group()
    except Exception as error:
        outcome.write_failure(error)
        return 1
    return 0
