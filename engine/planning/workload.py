"""Ways to train a workload on a grid: tensor mode, micro-batch and how many blocks are recomputed. No torch.

What is left to a plan is chosen for each grid by an estimate of a step's time, communication as run and compute at the
devices' peak, among the ways that fit in memory (colossal-ai 3.3 searches splits and recomputation together, too).
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.footprint.fit import offloaded_bytes
from engine.footprint.memory import Footprint, Needs, usable
from engine.grid import Grid
from engine.models.flops import repeated_flops
from engine.models.mode_choice import ModeName
from engine.models.network import Network
from engine.pipeline.registry import DEFAULT
from engine.planning.equations import Costs, SecondsByEquation
from engine.planning.grids import divisors
from engine.simulator.bandwidth import LinksOn
from engine.training_record import Training

if TYPE_CHECKING:
    from engine.simulator.simulate import Forecast

PASSES_A_STAGE = 4
"""Micro-batches for each stage of a pipeline, where a rank's share has so many sequences."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Grid that fits, with a way to train on it."""

    grid: Grid
    training: Training
    """with its tensor mode, micro-batch and recomputed blocks"""
    needs: Needs
    """memory of a rank"""
    equations: SecondsByEquation
    """communication in a step by Eq. 1 to 7"""
    as_run: SecondsByEquation
    """communication in a step as the engine runs it"""
    compute_s: float = 0.0
    """seconds in which a device at its peak computes its part of a step, with what ranks repeat; 0 of unknown ones"""
    forecast: "Forecast | None" = None

    @property
    def micro(self) -> int:
        """Sequences that a rank takes at once."""
        return self.training.batch.at_once(self.grid)

    @property
    def equations_s(self) -> float:
        """Seconds of communication by Eq. 1 to 7."""
        return sum(self.equations.values())

    @property
    def as_run_s(self) -> float:
        """Seconds of communication as the engine runs it."""
        return sum(self.as_run.values())

    @property
    def estimate_s(self) -> float:
        """Seconds of communication as run, and of compute."""
        return self.as_run_s + self.compute_s


@dataclass(frozen=True)
class Workload:
    """Training on devices of a kind, "cpu" or "cuda"."""

    training: Training
    device_memory: float | None = None
    """bytes of one; None takes it to hold everything"""
    device: str = "cuda"
    host_memory: float | None = None
    """bytes of a node's for each of its devices, likewise"""
    modes: tuple[ModeName, ...] = ()
    """tensor modes of which one is chosen for each grid; none leaves the training's"""
    recomputes_least: bool = False
    """whether no more blocks are recomputed than memory asks for; else as many as the training says"""
    flops_per_s: float = 0.0
    """that a device reaches at most, if that is known: ways to train are estimated by it"""

    @property
    def usable(self) -> float:
        """Bytes that a rank may need."""
        return usable(self.device_memory)

    @cached_property
    def _network(self) -> Network:
        return self.training.model.network()

    @cached_property
    def _footprints(self) -> dict[Training, Footprint]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[Grid, Training], Needs]:
        return {}

    @cached_property
    def _costs(self) -> dict[Training, Costs]:
        return {}

    def in_micro_batches(self, micro: int | None) -> Training:
        """Return the training with micro-batches of so many sequences."""
        return in_micro_batches(self.training, micro)

    def needs(self, grid: Grid, micro: int) -> Needs:
        """Count the memory that a rank needs in micro-batches of so many sequences, trained as asked for."""
        return self.count(grid, self.in_micro_batches(micro))

    def least(self, grid: Grid) -> tuple[Training, Needs]:
        """Return the way that needs least, with what it needs by the count."""
        batch = self.training.batch
        micros = [batch.micro] if batch.micro else divisors(max(1, batch.sequences // grid.batch_split))
        smallest: dict[ModeName, Training] = {}
        for micro in micros:
            for way in self._ways(grid, micro):
                smallest.setdefault(way.tensor_mode, in_micro_batches(way, micro))
            if len(smallest) >= max(1, len(self.modes)):
                break
        ways = list(smallest.values()) or [in_micro_batches(self.training, micros[0])]
        return min(((way, self.count(grid, way)) for way in ways), key=lambda found: found[1].total)

    def count(self, grid: Grid, training: Training) -> Needs:
        """Count the memory that a rank needs."""
        key = grid, training
        if key not in self._known:
            self._known[key] = self._footprint(training).on(grid)
        return self._known[key]

    def _footprint(self, training: Training) -> Footprint:
        if training not in self._footprints:
            self._footprints[training] = Footprint(training, self.device)
        return self._footprints[training]

    def may_fit(self, training: Training, needs: Needs) -> bool:
        """Say whether a rank may need no more than it has, as far as a count can tell: a trace decides."""
        return needs.total <= self.usable * (1 + self._footprint(training).error)

    def costs(self, training: Training) -> Costs:
        """Return the prices of a training's collectives."""
        whole = in_micro_batches(training, self.training.batch.micro)
        if whole not in self._costs:
            self._costs[whole] = Costs(whole)
        return self._costs[whole]

    def allows(self, grid: Grid, micro: int | None) -> bool:
        """Say whether the schedule and the cut that a person gave, if any, can be on the grid, and the host has room
        for what is offloaded.
        """
        return self._allows(grid, self.in_micro_batches(micro))

    def _allows(self, grid: Grid, training: Training) -> bool:
        try:
            training.check_mode(grid, self._network)
            if training.pipeline != DEFAULT:
                training.staged(grid)
            return self.host_memory is None or offloaded_bytes(training, grid) <= self.host_memory
        except UsageError:
            return False

    def _ways(self, grid: Grid, micro: int | None) -> list[Training]:
        """List the training in each tensor mode that the grid allows."""
        modes = self.modes[:1] if grid.plane == 1 else self.modes
        ways = [replace(self.training, tensor_mode=mode) for mode in modes] or [self.training]
        return [way for way in ways if self._allows(grid, in_micro_batches(way, micro))]

    def choose_micro(self, grid: Grid) -> int:
        """Choose the micro-batch: as asked for, or the largest divisor of a rank's share whose step fits in memory,
        trained as asked for; 1 if none fits.
        """
        return self.training.batch.micro or self._fitting_micro(grid, self.training, self.usable) or 1

    def _fitting_micro(self, grid: Grid, training: Training, limit: float) -> int | None:
        """Return the largest micro-batch whose step needs no more bytes; None if there is none.

        Fewer micro-batches gather less and multiply larger matrices. A pipeline has PASSES_A_STAGE for each stage,
        where the share has so many sequences.
        """
        batch = training.batch
        share = batch.per_rank(grid)
        micros = [batch.micro] if batch.micro else divisors(share)
        if grid.stages > 1 and not batch.micro:
            micros = [micro for micro in micros if share >= micro * PASSES_A_STAGE * grid.stages] or [1]
        if training.tensor_mode not in ("auto", "4d", "1d"):
            micros = [micro for micro in micros if self._allows(grid, in_micro_batches(training, micro))]

        def exceeds(micro: int) -> bool:
            return self.count(grid, in_micro_batches(training, micro)).total > limit

        fitting = bisect_left(micros, True, key=exceeds)
        return micros[fitting - 1] if fitting else None

    def at(self, grid: Grid, micro: int) -> Candidate:
        """Make the candidate of a training as asked for, without prices."""
        training = self.in_micro_batches(micro)
        return Candidate(grid, training, self.count(grid, training), {}, {})

    def coarse(self, grid: Grid, links_as_run: LinksOn) -> Candidate | None:
        """Make the candidate of a training as asked for, with the largest micro-batch that fits; None if none does.

        Where no more blocks are recomputed than memory asks for, their number is estimated by what a rank needs with
        all and with none.
        """
        if not self.allows(grid, self.training.batch.micro):
            return None
        if (micro := self._fitting_micro(grid, self.training, self.usable)) is None:
            return None
        training = self.in_micro_batches(micro)
        if self.recomputes_least:
            training = self._estimated(grid, training)
        return self.candidate(grid, training, links_as_run)

    def _estimated(self, grid: Grid, training: Training) -> Training:
        none, every = (self.count(grid, one).total for one in (training.recomputing(0), training))
        if none <= self.usable or none <= every:
            return training.recomputing(0)
        layers = training.model.layers
        blocks = ceil(layers * (none - self.usable) / (none - every))
        return training if blocks >= layers else replace(training, checkpoint_blocks=blocks)

    def choose(self, grid: Grid, links_as_run: LinksOn, limit: float | None = None) -> Candidate | None:
        """Choose the tensor mode, the micro-batch and whether blocks are recomputed that are estimated to take least of
        those that fit; None if none does. limit: bytes that a rank may need by the count, if others than it has.
        """
        limit = self.usable if limit is None else limit
        found = [
            self.candidate(grid, in_micro_batches(training, micro), links_as_run)
            for way in self._ways(grid, self.training.batch.micro)
            for training, micro in self._fitting(grid, way, limit)
        ]
        return min(found, key=lambda one: one.estimate_s, default=None)

    def _fitting(self, grid: Grid, way: Training, limit: float) -> Iterator[tuple[Training, int]]:
        """Yield the training with no block recomputed, and with as many as it says, each with its micro-batch."""
        for training in (way.recomputing(0), way) if self.recomputes_least else (way,):
            if (micro := self._fitting_micro(grid, training, limit)) is not None:
                yield training, micro
                if micro == way.batch.at_once(grid):
                    return  # there is no larger one, for which to recompute

    def choose_staged(
        self, grid: Grid, micro: int, links_as_run: LinksOn, limit: float | None = None
    ) -> Candidate | None:
        """Choose the same on a grid with stages in micro-batches of so many sequences."""
        limit = self.usable if limit is None else limit
        ways = [in_micro_batches(way, micro) for way in self._ways(grid, micro)]
        ways += [way.recomputing(0) for way in ways if self.recomputes_least]
        fit = [way for way in ways if self.count(grid, way).total <= limit]
        found = [self.candidate(grid, way, links_as_run) for way in fit]
        return min(found, key=lambda one: one.estimate_s, default=None)

    def recompute_fewest(self, one: Candidate, links_as_run: LinksOn, limit: float) -> Candidate | None:
        """Return a candidate that recomputes all blocks with as few as need no more bytes by the count; None if that
        takes all.
        """
        layers, size = one.training.model.layers, one.training.checkpoint_group(one.grid)
        some = [replace(one.training, checkpoint_blocks=blocks) for blocks in range(size, layers)]
        fewest = bisect_left(some, True, key=lambda training: self.count(one.grid, training).total <= limit)
        return self.candidate(one.grid, some[fewest], links_as_run) if fewest < len(some) else None

    def candidate(self, grid: Grid, training: Training, links_as_run: LinksOn) -> Candidate:
        """Make the candidate of a training in micro-batches, without prices by the equations."""
        as_run = self.costs(training).as_run(grid, links_as_run(grid), training.batch.at_once(grid))
        return Candidate(grid, training, self.count(grid, training), {}, as_run, self.compute_s(grid, training))

    def compute_s(self, grid: Grid, training: Training) -> float:
        """Return the seconds in which a device at its peak computes its part of a step; 0 of unknown devices."""
        if not self.flops_per_s:
            return 0.0
        mode, sequences = training.mode(grid, self._network), training.batch.sequences
        recomputed = training.recomputed_blocks
        flops = training.flops + repeated_flops(training.model, sequences, grid, recomputed=recomputed, mode=mode)
        return flops / (grid.size * self.flops_per_s)


def in_micro_batches(training: Training, micro: int | None) -> Training:
    """Return a training with micro-batches of so many sequences."""
    return replace(training, batch=replace(training.batch, micro=micro))
