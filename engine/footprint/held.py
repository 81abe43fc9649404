"""What a stage of a pipeline holds: its part of the network, and passes that are under way. No torch in it."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.footprint.activations import Activations
from engine.grid import INNER, Grid
from engine.overlap.flags import AUTO
from engine.overlap.tasks import StepSchedule
from engine.pipeline.one_f_one_b import OneFOneB
from engine.training_record import Training

MESSAGES = 6
"""So many messages a stage has at a time, each of the activations between two stages: two receives are posted ahead in
each direction, and one that was sent may not have been received.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """blocks: of the stage. passes, pending: so many passes does its schedule keep at most besides the one that is
    worked on, and so many more whose weight gradients alone are still to come.
    """

    blocks: int
    is_first: bool
    is_last: bool
    passes: float = 0.0
    pending: float = 0.0

    @classmethod
    def whole(cls, layers: int) -> "Held":
        """Hold a network that isn't cut, one pass at a time."""
        return cls(layers, is_first=True, is_last=True)

    def more_passes(self, activations: Activations) -> float:
        """Count the bytes of the passes besides the one that is worked on."""
        kept = activations.kept(self.blocks)
        left = self.blocks * activations.left_of_block()
        if self.is_last:
            kept += activations.kept_of_head() + activations.logits()
            left += activations.left_of_head()
        return self.passes * kept + self.pending * max(kept, left)

    def messages(self, activations: Activations, grid: Grid) -> float:
        """Count the bytes of messages from and to other stages."""
        return 0.0 if grid.stages == 1 else MESSAGES * activations.stream / grid[INNER]


def stages_held(training: Training, grid: Grid) -> Iterator[Held]:
    """Yield what each stage of a grid holds, as its schedule bounds it: auto takes none that keeps more than 1F1B."""
    passes, last = max(1, training.passes(grid)), grid.stages - 1
    auto = training.pipeline.schedule == AUTO and grid.stages > 1
    schedule: StepSchedule = OneFOneB() if auto else training.staged(grid).schedule
    for stage, chunks in enumerate(training.cut(grid).blocks):
        kept, pending = schedule.held(stage, grid.stages, passes)
        of_chunks = kept / len(chunks), pending / len(chunks)
        others = max(0.0, of_chunks[0] - 1), of_chunks[1] if kept else max(0.0, of_chunks[1] - 1)
        yield Held(sum(map(len, chunks)), stage == 0, stage == last, *others)
