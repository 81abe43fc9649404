"""Bytes that one rank's training steps really allocate on a processor, by the profiler's record."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from engine.comm.backend import Channel
from engine.comm.collective import Lane
from engine.comm.contact import Route
from engine.comm.funnel import Comm
from engine.comm.gloo import GlooChannel
from engine.comm.groups import ProcessGroups, fake_group
from engine.grid import Axis, Grid
from engine.measure.memory import Allocated
from engine.measure.recorder import Recorder
from engine.training.trainer import Trainer
from engine.training_record import Training


class GlooAlone(ProcessGroups):
    """One rank over torch's fake back end, with the buffers that the engine makes for gloo."""

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        fake: Any = super().channel(axis, lane, members)
        return GlooChannel(fake._group, Route(self.rank, f"on axis {axis}", [], "gloo"))


def peak_of_steps(training: Training, grid: Grid, rank: int = 0, steps: int = 2) -> int:
    """The most bytes that its tensors take, its state included: the first step learns the order that later ones have.

    What gloo's own threads allocate for a while, a copy of a gather that they are about, isn't there: over the fake
    back end nothing is sent. Nor does the record of real ranks tell it rightly: it misses what those threads release.
    """
    with fake_group(grid, rank):
        cpu = torch.device("cpu")
        comm = Comm(grid, backend=GlooAlone(grid, cpu, timedelta(seconds=60)))
        trainer = Trainer(training, training.model.task.data.synthetic(), comm, Recorder())
        state = sum(p.nbytes for p in trainer.model.local_parameters().values()) + trainer.model.flat_gradients.nbytes
        state += sum(moment.nbytes for moments in trainer.optimizer.state.values() for moment in moments.values())
        with Allocated(cpu) as allocated:
            for _ in range(steps):
                trainer.recorder.start_step("forward")
                trainer.launch_step()
                trainer.recorder.end_step()
    assert allocated.peak_bytes is not None
    return allocated.peak_bytes + state
