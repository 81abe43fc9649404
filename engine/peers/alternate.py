"""What one rank of a contest does: both sides in one process, in turns, so that the machine's drift cancels."""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from types import MappingProxyType

import torch

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data.dataset import open_dataset
from engine.data.sampler import batch
from engine.layers.matmul import Kernels
from engine.measure.allocated import Allocated
from engine.measure.clock import HostClock
from engine.peers.contest import TOLERANCES, Case, Contest
from engine.peers.equality import check_equal
from engine.peers.ours import plan, trainer
from engine.peers.peer import Peer, Values
from engine.result.peers import NOTHING, SIDES, Measured, Side, SideName
from engine.training.run import tuned
from engine.training.trainer import to_device

Step = Callable[[], Values]


def our_side(case: Case, comm: Comm, kernels: Mapping[str, Kernels] = MappingProxyType({})) -> Step:
    """The engine on the grid of comm. kernels: of its layers, by name."""
    ours = trainer(case, comm, kernels)

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


def measure(comm: Comm, contest: Contest, case: Case, names: Sequence[SideName] = SIDES) -> Measured:
    """Warm the sides up, check that they train alike, and time them in turns; before, tune ours where the contest asks
    for it. Collective.

    names: of the sides; of one that is left out nothing is measured. Raises RunError if losses or gradient norms of the
    warm-up steps differ, Unavailable for a peer that can't be held here.
    """
    module, _, constructor = contest.built_by.partition(":")
    peer = getattr(import_module(module), constructor)
    kernels, tuning = tuned(plan(case, comm, tune=contest.tunes and "ours" in names), comm)
    build: dict[SideName, Callable[[], Step]] = {
        "ours": lambda: our_side(case, comm, kernels),
        "peer": lambda: peer_side(case, comm, peer(case, comm)),
    }
    sides = {name: _Turns(build[name], comm.device, case.warmup) for name in names}
    if len(sides) == len(SIDES):
        check_equal(contest.name, sides["ours"].values, sides["peer"].values, TOLERANCES[case.precision])
    turns = list(sides.values())
    for index in range(case.rounds):
        for side in turns if index % 2 == 0 else reversed(turns):  # each goes first in half of the rounds
            comm.barrier()
            side.take(case.steps)
    return Measured(**{name: sides[name].measured() if name in sides else NOTHING for name in SIDES}, tuning=tuning)


class _Turns:
    """One side, built and warmed up, and its steps, timed. A step has ended when the device has done all of it.

    The last step of the warm-up is not watched by what counts its memory.
    """

    def __init__(self, build: Callable[[], Step], device: torch.device, warmup: int) -> None:
        self._clock = HostClock(device)
        watched = max(warmup - 1, 1)
        with Allocated(device) as self._memory:
            self._step = build()
            self.values = [self._step()]
            if watched > 1:
                self._memory.forget_peak()  # a compiler has tried its kernels in the first step
            self.values += [self._step() for _ in range(watched - 1)]
        self.values += [self._step() for _ in range(warmup - watched)]
        self._wall_s: list[tuple[float, ...]] = []
        self._cpu_s: list[tuple[float, ...]] = []

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
            peak_bytes=self._memory.peak_bytes,
        )
