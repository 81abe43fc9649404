"""What a stage of a pipeline holds: its part of the network, and passes that are under way. No torch in it."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.footprint.activations import Activations
from engine.footprint.weights import Weights
from engine.grid import INNER, Grid
from engine.overlap.flags import AUTO
from engine.overlap.tasks import StepSchedule
from engine.pipeline.one_f_one_b import OneFOneB
from engine.training_record import Training

MESSAGES = 3
"""So many messages a stage has at a time on each of its sides, each of the activations between two stages: two receives
are posted ahead, and one that was sent may not have been received.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """blocks: of the stage. passes, pending: so many passes does its schedule keep at most besides the one that is
    worked on, and so many more whose weight gradients alone are still to come. heads: of those passes, so many are in
    what comes after the blocks. sides: to how many neighbours the stage is open. deferring: whether backwards leave
    weight gradients.
    """

    blocks: int
    is_first: bool
    is_last: bool
    passes: float = 0.0
    pending: float = 0.0
    heads: float = 0.0
    sides: int = 0
    deferring: bool = False

    @classmethod
    def whole(cls, layers: int) -> "Held":
        """Hold a network that isn't cut, one pass at a time."""
        return cls(layers, is_first=True, is_last=True)

    def more_weights(self, weights: Weights) -> float:
        """Count the bytes of the gathered weights that those passes keep: of the head, which isn't recomputed."""
        return self.heads * weights.of_head() if self.is_last else 0.0

    def more_passes(self, activations: Activations) -> float:
        """Count the bytes of the passes besides the one that is worked on."""
        kept, left = activations.kept(self.blocks), self.left(activations, self.blocks)
        if self.is_first:
            kept, left = kept + activations.kept_before(), left + activations.left_before()
        of_head = activations.kept_of_head() + activations.logits() if self.is_last else 0.0
        return self.passes * kept + self.heads * of_head + self.pending * max(kept + of_head, left)

    def left(self, activations: Activations, blocks: int) -> float:
        """Count the bytes that a backward leaves for weight gradients, of the head and of so many blocks."""
        return blocks * activations.left_of_block() + (activations.left_of_head() if self.is_last else 0.0)

    def messages(self, activations: Activations, grid: Grid) -> float:
        """Count the bytes of messages from and to other stages."""
        return self.sides * MESSAGES * activations.stream / grid[INNER]


def stages_held(training: Training, grid: Grid) -> Iterator[Held]:
    """Yield what each stage of a grid holds, as its schedule bounds it: auto takes none that keeps more than 1F1B.

    The pass that is worked on is one of those that are kept, and with deferred weight gradients one of those that are
    pending, as its backward turns it into one. With several chunks the last one's backward follows its forward, so that
    no other pass is in the head.
    """
    passes, last = max(1, training.passes(grid)), grid.stages - 1
    auto = training.pipeline.schedule == AUTO and grid.stages > 1
    schedule: StepSchedule = OneFOneB() if auto else training.staged(grid).schedule
    for stage, chunks in enumerate(training.cut(grid).blocks):
        kept, pending = (count / len(chunks) for count in schedule.held(stage, grid.stages, passes))
        if schedule.deferring:
            pending = max(0.0, pending - 1)
        else:
            kept = max(0.0, kept - 1)
        yield Held(
            sum(map(len, chunks)), stage == 0, stage == last, kept, pending, kept if len(chunks) == 1 else 0.0,
            0 if grid.stages == 1 else 2 if len(chunks) > 1 else 2 - (stage == 0) - (stage == last), schedule.deferring,
        )  # fmt: skip
