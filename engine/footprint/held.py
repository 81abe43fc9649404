"""What a stage of a pipeline holds: its part of the network, and passes that are under way. No torch in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from engine.footprint.activations import Activations
from engine.footprint.weights import Pass, Weights
from engine.grid import Grid
from engine.overlap.flags import AUTO
from engine.overlap.tasks import StepSchedule, live_whole_passes
from engine.pipeline.fixed_schedules import OneFOneB
from engine.training_record import Training

MESSAGES = 3
"""So many messages a stage has at a time on each of its sides, each of what goes from one to the other: two receives
are posted ahead, and one that was sent may not have been received.
"""


@dataclass(frozen=True, slots=True)
class Held:
    """chunks: of the stage's blocks. passes, pending: so many passes does its schedule keep at most besides the one
    that is worked on, and so many more whose weight gradients alone are still to come. of_step: so many has a step.
    deferring: whether backwards leave weight gradients.
    """

    chunks: Sequence[range]
    is_first: bool
    is_last: bool
    passes: float = 0.0
    pending: float = 0.0
    of_step: int = 1
    deferring: bool = False

    @classmethod
    def whole(cls, layers: int) -> "Held":
        """Hold a network that isn't cut, one pass at a time."""
        return cls([range(layers)], is_first=True, is_last=True)

    @property
    def numbers(self) -> Sequence[int]:
        """List the numbers of the stage's blocks."""
        return list(chain(*self.chunks))

    @property
    def blocks(self) -> int:
        """Count the stage's blocks."""
        return sum(map(len, self.chunks))

    def of_pass(self, now: Pass) -> Pass:
        """Say of a pass whether a forward is still to come, where others may have had theirs."""
        return replace(now, followed=now.followed and sum(self._beside(now)) < self._left(now))

    def beside(self, now: Pass, activations: Activations, weights: Weights) -> tuple[float, float, float]:
        """Count the bytes of the passes besides the one that is worked on: of their activations, of the head's weights,
        which aren't gathered again where nothing is recomputed, and of cached ones. Those that gave their contributions
        before it are over. One that may be pending has either all that a forward keeps or what a backward leaves.
        """
        passes, pending = self._beside(now)
        kept, in_head = activations.kept(self.blocks), (0.0, 0.0)
        if self.is_first:
            kept += activations.kept_before()
        if self.is_last:
            in_head = activations.kept_of_head() + activations.logits(), weights.of_head()
        heads = passes if len(self.chunks) == 1 else 0.0
        forward = kept + in_head[0], in_head[1], weights.cached(self.blocks)
        backward = self.left(activations) + (activations.left_before() if self.is_first else 0.0), 0.0, 0.0
        waiting = max(forward, backward, key=sum)
        return (
            passes * kept + heads * in_head[0] + pending * waiting[0],
            heads * in_head[1] + pending * waiting[1],
            passes * forward[2] + pending * waiting[2],
        )

    def _left(self, now: Pass) -> float:
        return max(0.0, self.of_step - 1 - now.number / len(self.chunks))

    def _beside(self, now: Pass) -> tuple[float, float]:
        pending = min(self.pending, self._left(now))
        return min(self.passes, self._left(now) - pending), pending

    def left(self, activations: Activations, first: int = 0) -> float:
        """Count the bytes that a backward leaves for weight gradients, of the blocks from one on and of the head."""
        return activations.left(first) + (activations.left_of_head() if self.is_last else 0.0)

    def messages(self, activations: Activations) -> float:
        """Count the bytes of messages from and to other stages."""
        return MESSAGES * activations.messages


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
        kept, pending = live_whole_passes(schedule, stage, grid.stages, passes)
        if schedule.deferring:
            pending = max(0.0, pending - 1)
        else:
            kept = max(0.0, kept - 1)
        yield Held(chunks, stage == 0, stage == last, kept, pending, passes, schedule.deferring)
