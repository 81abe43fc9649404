"""What one rank of a contest does: both sides in one process, in turns, so that the machine's drift cancels."""

import math
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise

import torch

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data.dataset import open_dataset
from engine.data.sampler import batch
from engine.errors import RunError
from engine.peers.contest import Case, Contest, Measured, Side
from engine.peers.ours import trainer
from engine.peers.peer import Peer, Values

TOLERANCE = 1e-4
"""Relative; fp32 sums in another order differ by about 1e-6, which AdamW's first steps enlarge."""

Step = Callable[[], Values]


def our_side(case: Case, comm: Comm) -> Step:
    """The engine on the grid of comm."""
    ours = trainer(case, comm)

    def step() -> Values:
        done = ours.step()
        return Values(done.loss, done.gradient_norm)

    return step


def peer_side(case: Case, comm: Comm, peer: Peer) -> Step:
    """The peer on the same rows of the same batches."""
    dataset = open_dataset("synthetic", vocabulary=case.model.vocabulary, sequence_length=case.model.sequence)
    share = Batch(case.sequences).rows(comm.grid, comm.coords)
    done = 0

    def step() -> Values:
        nonlocal done
        tokens_BS, targets_BS = batch(
            dataset,
            seed=case.seed,
            step=done,
            batch_size=case.sequences,
            rows=share,
            sequence_length=case.model.sequence,
        )
        done += 1
        return peer.step(torch.from_numpy(tokens_BS), torch.from_numpy(targets_BS))

    return step


def measure(comm: Comm, contest: Contest, case: Case) -> Measured:
    """Warm both sides up, check that they train alike, and time them in turns. Collective.

    Raises RunError if losses or gradient norms of the warm-up steps differ.
    """
    module, _, constructor = contest.built_by.partition(":")
    ours = our_side(case, comm)
    peer = peer_side(case, comm, getattr(import_module(module), constructor)(case, comm))
    sides = [_Turns(ours), _Turns(peer)]
    for side in sides:
        side.warm_up(case.warmup)
    check_equal(contest.name, *(side.values for side in sides))
    for index in range(case.rounds):
        for side in sides if index % 2 == 0 else reversed(sides):  # each goes first in half of the rounds
            comm.barrier()
            side.take(case.steps)
    return Measured(*(side.measured() for side in sides))


class _Turns:
    """One side's steps, timed."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.values: list[Values] = []
        self._wall_s: list[tuple[float, ...]] = []
        self._cpu_s: list[tuple[float, ...]] = []

    def warm_up(self, steps: int) -> None:
        self.values = [self._step() for _ in range(steps)]

    def take(self, steps: int) -> None:
        marks = [(time.perf_counter(), time.process_time())]
        for _ in range(steps):
            self._step()
            marks.append((time.perf_counter(), time.process_time()))
        wall, cpu = zip(*marks, strict=True)
        self._wall_s.append(tuple(b - a for a, b in pairwise(wall)))
        self._cpu_s.append(tuple(b - a for a, b in pairwise(cpu)))

    def measured(self) -> Side:
        return Side(tuple(v.loss for v in self.values), tuple(self._wall_s), tuple(self._cpu_s))


def check_equal(name: str, ours: list[Values], peer: list[Values]) -> None:
    """Raises RunError unless both sides had the same losses and gradient norms."""
    for step, (a, b) in enumerate(zip(ours, peer, strict=True)):
        for what, x, y in (("loss", a.loss, b.loss), ("gradient norm", a.gradient_norm, b.gradient_norm)):
            if not math.isclose(x, y, rel_tol=TOLERANCE):
                raise RunError(
                    f"The engine and {name} don't do the same: in step {step} the engine's {what} was {x:.7g} and "
                    f"that of {name} {y:.7g}, so their times can't be compared."
                )
