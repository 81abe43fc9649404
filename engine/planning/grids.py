"""Find the grids on which a network can be trained, and the batches that so many ranks can share. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil, gcd, isqrt, prod

from engine.errors import UsageError, listed_divisors
from engine.grid import Grid
from engine.models.architecture import Architecture

NEAR = 0.05
"""A batch may differ from what was asked for by this share if more grids can share it then: 4M tokens may be 2^22."""
FAR = 0.1
"""A batch may differ by this share where no grid can share a nearer one."""


def divisors(number: int) -> list[int]:
    """List all divisors, ascending."""
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def factorisations(ranks: int) -> Iterator[Grid]:
    """Yield every grid of so many ranks: all ordered factorisations into x, y, z and data."""
    for x in divisors(ranks):
        for y in divisors(ranks // x):
            for z in divisors(ranks // (x * y)):
                yield Grid(x, y, z, ranks // (x * y * z))


@dataclass(frozen=True)
class SearchSpace:
    """The search space has the grids on which a network can be trained with a batch of about so many sequences.

    exact: whether the batch has to have just that many; `batch` says which is taken otherwise. micro: sequences that a
    rank takes at once, if that is asked for. stages: of pipelines that are searched, too; None searches all numbers.
    """

    model: Architecture
    sequences: float
    exact: bool = False
    micro: int | None = None
    stages: int | None = 1

    @cached_property
    def planes(self) -> list[tuple[int, int]]:
        """List every (x, y) that divides what they split but outputs, the smallest product first."""
        network = self.model.network()
        even = gcd(*network.divided_inside.values(), *chain(*network.shared_inside.values()))
        xs = [x for x in divisors(even) if self._allows(Grid(x=x))]
        ys = [y for y in divisors(gcd(*network.divided_in_stream.values())) if self._allows(Grid(y=y))]
        both = [(x, y) for x in xs for y in ys if min(x, y) == 1 or self._allows(Grid(x=x, y=y))]
        return sorted(both, key=lambda plane: (prod(plane), plane))

    def _allows(self, grid: Grid) -> bool:
        """Say whether x and y divide all that they split."""
        try:
            self.model.check(grid)
        except UsageError:
            return False
        return True

    def _planes_in(self, ranks: int) -> list[tuple[int, int]]:
        return [(x, y) for x, y in self.planes if ranks % (x * y) == 0]

    def parts(self, ranks: int) -> set[int]:
        """Return the numbers one of which has to divide the batch, so that some grid of so many ranks can share it."""
        return {ranks // (x * y) * (self.micro or 1) for x, y in self._planes_in(ranks)}

    def batch(self, ranks: int) -> int | None:
        """Return the sequences of a batch near those asked for that a grid of so many ranks can share, or None.

        Within NEAR of what was asked for the nearest power of two that can be shared is taken; else the batch that has
        the largest factor in common with the ranks, so that most grids can share it; else the nearest one up to FAR.
        Where no grid of one stage can share any, it is one that a pipeline's stages can.
        """
        if (found := self._of_stage(ranks)) is not None:
            return found
        for batch in (self._of_stage(ranks // number) for number in self._stages(ranks)):
            if batch and any(
                batch >= g.stages * g.batch_split * (self.micro or 1) for g in self.pipelines(ranks, batch)
            ):
                return batch
        return None

    def _of_stage(self, ranks: int) -> int | None:
        """Return the sequences of a batch that a grid of so many ranks and one stage can share, or None."""
        parts, asked = self.parts(ranks), self.sequences

        def shared(sequences: int) -> bool:
            return sequences > 0 and any(sequences % part == 0 for part in parts)

        def distance(sequences: int) -> float:
            return abs(sequences - asked)

        if self.exact:
            return int(asked) if shared(int(asked)) else None
        powers = {1 << k for k in range(int(asked).bit_length() + 1)}
        if near := [p for p in powers if distance(p) <= NEAR * asked and shared(p)]:
            return min(near, key=distance)
        multiples = {part * whole for part in parts for whole in (int(asked // part), int(asked // part) + 1)}
        closest = min((m for m in multiples if m > 0), key=lambda m: (distance(m), m))
        window = range(ceil(asked * (1 - NEAR)), int(asked * (1 + NEAR)) + 1)
        if near := [s for s in window if shared(s)]:
            return max(near, key=lambda s: (gcd(s, ranks), -distance(s)))
        return closest if distance(closest) <= FAR * asked else None

    def grids(self, ranks: int, sequences: int) -> list[Grid]:
        """List every grid of so many ranks that divides the network and a batch of so many sequences."""
        found = []
        for x, y in self._planes_in(ranks):
            rest = ranks // (x * y)
            if sequences % (rest * (self.micro or 1)):
                continue
            found += [Grid(x, y, z, rest // z) for z in divisors(rest)]
        return found

    def _stages(self, ranks: int) -> list[int]:
        """List the numbers of stages that are searched of so many ranks, each stage with a block or more."""
        asked = divisors(ranks)[1:] if self.stages is None else [self.stages]
        return [number for number in asked if number > 1 and ranks % number == 0 and number <= self.model.layers]

    def pipelines(self, ranks: int, sequences: int) -> list[Grid]:
        """List every such grid with several stages, each of a block or more, and a micro-batch for each stage: with
        several data groups in both orders.
        """
        return [
            replace(grid.with_stages(number), pipe_outermost=outermost)
            for number in self._stages(ranks)
            for grid in self.grids(ranks // number, sequences)
            if sequences >= number * grid.batch_split
            for outermost in ((False, True) if grid.model_replicas > 1 else (False,))
        ]

    def no_stages(self, ranks: int) -> UsageError:
        """Make the error of a number of stages that no grid has."""
        return UsageError(
            f"No grid of {ranks} devices has {self.stages} stages: give a --pipe that divides the devices and is no "
            f"more than the {self.model.layers} blocks of {self.model.name} or the micro-batches of a rank."
        )

    def nearest(self, ranks: int) -> list[int]:
        """Find the number of ranks closest to this one that has a valid grid; two if both neighbours are as close."""
        for away in range(1, ranks + 1):
            if found := [n for n in (ranks - away, ranks + away) if n > 0 and self.batch(n) is not None]:
                return found
        return []

    def check(self, ranks: int) -> int:
        """Return the sequences of the batch. Raises UsageError, which says why and what would do, without a grid."""
        samples = self.model.task.data.samples
        if ranks < 1 or self.sequences <= 0:
            raise UsageError(
                f"A job has at least one device and one sample, but {ranks} devices and a batch of "
                f"{self.sequences:g} {samples} were asked for."
            )
        sequences = self.batch(ranks)
        if sequences is not None:
            return sequences
        if self.exact and self.sequences % (self.micro or 1):
            raise UsageError(
                f"Micro-batches of {self.micro} don't divide a batch of {self.sequences:.0f} {samples}: use "
                f"--micro-batch one of {listed_divisors(int(self.sequences))}."
            )
        if self.stages not in (None, 1):
            raise self.no_stages(ranks)
        x, y = self._planes_in(ranks)[-1]
        most = "none" if x * y == 1 else f"at most {x * y} ({x}x{y})"
        asked = f"{self.sequences:.0f} {samples}" + (f" in micro-batches of {self.micro}" if self.micro else "")
        near = "" if self.exact else f", nor does any batch up to {FAR:.0%} smaller or larger"
        others = self.nearest(ranks)
        raise UsageError(
            f"No grid of {ranks} devices is valid for {self.model.name}: x and y can take {most} of them, so that z "
            f"and data split a batch into {ranks // (x * y)} parts or more, which {asked} don't allow{near}; the "
            f"nearest {'numbers' if len(others) > 1 else 'number'} of devices with a valid grid: "
            f"{' and '.join(map(str, others))}."
        )
