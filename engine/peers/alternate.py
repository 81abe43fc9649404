"""What one rank of a contest does: both sides in one process, in turns, so that the machine's drift cancels."""

import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data.dataset import open_dataset
from engine.data.sampler import batch
from engine.errors import RunError
from engine.measure.clock import HostClock
from engine.peers.contest import TOLERANCES, Case, Contest
from engine.peers.ours import trainer
from engine.peers.peer import Peer, Values
from engine.result.metrics import relative_difference
from engine.result.peers import Measured, Side
from engine.training.trainer import to_device

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
        return peer.step(to_device(comm.device, tokens_BS), to_device(comm.device, targets_BS))

    return step


def measure(comm: Comm, contest: Contest, case: Case) -> Measured:
    """Warm both sides up, check that they train alike, and time them in turns. Collective.

    Raises RunError if losses or gradient norms of the warm-up steps differ.
    """
    module, _, constructor = contest.built_by.partition(":")
    ours = our_side(case, comm)
    peer = peer_side(case, comm, getattr(import_module(module), constructor)(case, comm))
    sides = [_Turns(step, HostClock(comm.device)) for step in (ours, peer)]
    for side in sides:
        side.warm_up(case.warmup)
    check_equal(contest.name, sides[0].values, sides[1].values, TOLERANCES[case.precision])
    for index in range(case.rounds):
        for side in sides if index % 2 == 0 else reversed(sides):  # each goes first in half of the rounds
            comm.barrier()
            side.take(case.steps)
    ours_took, peer_took = (side.measured() for side in sides)
    return Measured(ours=ours_took, peer=peer_took)


class _Turns:
    """One side's steps, timed. A step has ended when the device has done all that it asked for."""

    def __init__(self, step: Step, clock: HostClock) -> None:
        self._step, self._clock = step, clock
        self.values: list[Values] = []
        self._wall_s: list[tuple[float, ...]] = []
        self._cpu_s: list[tuple[float, ...]] = []

    def warm_up(self, steps: int) -> None:
        self.values = [self._step() for _ in range(steps)]

    def take(self, steps: int) -> None:
        wall, cpu = [self._clock.stamp_end()], [time.process_time()]
        for _ in range(steps):
            self._step()
            wall.append(self._clock.stamp_end())
            cpu.append(time.process_time())
        self._wall_s.append(tuple(self._clock.seconds(start, end) for start, end in pairwise(wall)))
        self._cpu_s.append(tuple(end - start for start, end in pairwise(cpu)))

    def measured(self) -> Side:
        return Side(
            losses=tuple(v.loss for v in self.values),
            gradient_norms=tuple(v.gradient_norm for v in self.values),
            wall_s=tuple(self._wall_s),
            cpu_s=tuple(self._cpu_s),
        )


def check_equal(name: str, ours: list[Values], peer: list[Values], tolerance: float) -> None:
    """Raises RunError unless both sides had the same losses and gradient norms, up to the tolerance."""
    for step, (a, b) in enumerate(zip(ours, peer, strict=True)):
        for what, x, y in (("loss", a.loss, b.loss), ("gradient norm", a.gradient_norm, b.gradient_norm)):
            if not relative_difference(x, y) <= tolerance:
                raise RunError(
                    f"The engine and {name} don't do the same: in step {step} the engine's {what} was {x:.7g} and "
                    f"that of {name} {y:.7g}, more than {tolerance:g} apart, so their times can't be compared."
                )
