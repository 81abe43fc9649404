"""Schedules go by names, with what a person sets of each; AUTO is the fastest of some. A new one is a file here and a
line below.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from engine.errors import UsageError, nearest
from engine.overlap.tasks import ONE_BY_ONE, StepSchedule
from engine.pipeline.gpipe import GPipe
from engine.pipeline.interleaved import Interleaved
from engine.pipeline.message_driven import MessageDriven
from engine.pipeline.message_driven_zero_bubble import MessageDrivenZeroBubble
from engine.pipeline.one_f_one_b import OneFOneB
from engine.pipeline.options import PipelineOptions
from engine.pipeline.zero_bubble import ZeroBubble

AUTO = "auto"
"""This name stands for the fastest of candidates()."""
_MADE: Mapping[str, Callable[..., StepSchedule]] = {
    "one-by-one": lambda: ONE_BY_ONE,
    "gpipe": GPipe,
    "1f1b": OneFOneB,
    "interleaved": Interleaved,
    "zero-bubble": ZeroBubble,
    "message-driven": MessageDriven,
    "message-driven-zb": MessageDrivenZeroBubble,
}
_TAKES = {"interleaved": ("chunks",), "message-driven": ("limit",), "message-driven-zb": ("limit", "cap")}
NAMES = tuple(_MADE)
_LEAST = {"limit": 1, "cap": 1, "chunks": 2}
_OPTIONS = {"limit": "--pipeline-limit", "cap": "--weight-limit", "chunks": "--chunks"}


@dataclass(frozen=True, slots=True)
class ScheduleChoice:
    """It is a schedule's name and what is set of it. What isn't is as the schedule has it.

    limit, cap, chunks: as --pipeline-limit, --weight-limit and --chunks set them.
    """

    name: str
    limit: int | None = None
    cap: int | None = None
    chunks: int | None = None

    def make(self) -> StepSchedule:
        """Make the schedule. Raises UsageError for an unknown name, and for what it doesn't take or allow."""
        if self.name not in _MADE:
            raise UsageError(f"There is no schedule {self.name!r}: {nearest(self.name, [*NAMES, AUTO])}")
        return _MADE[self.name](**dict(self._checked()))

    def _checked(self) -> Iterator[tuple[str, int]]:
        for name, value in self._set.items():
            if name not in _TAKES.get(self.name, ()):
                takers = " or ".join(taker for taker, taken in _TAKES.items() if name in taken)
                raise UsageError(
                    f"--schedule {self.name} takes no {_OPTIONS[name]}: leave it out, or choose --schedule {takers}."
                )
            if value < _LEAST[name]:
                raise UsageError(f"{_OPTIONS[name]} is a number from {_LEAST[name]} up, but {value} was given.")
            yield name, value

    @property
    def _set(self) -> dict[str, int]:
        return {field.name: value for field in fields(self)[1:] if (value := getattr(self, field.name)) is not None}

    @classmethod
    def parse(cls, text: str) -> "ScheduleChoice":
        """Read what str() writes.

        >>> ScheduleChoice.parse("message-driven-zb, limit 4, cap 2")
        ScheduleChoice(name='message-driven-zb', limit=4, cap=2, chunks=None)
        """
        name, *settings = text.split(", ")
        return cls(name, **{key: int(value) for key, value in (setting.split() for setting in settings)})

    @property
    def settings(self) -> dict[str, int]:
        """Give the options of the command line that set something of the schedule, and to what."""
        return {_OPTIONS[name]: value for name, value in self._set.items()}

    def options(self, stages: str | None = None) -> PipelineOptions:
        """Give the options of a pipeline that choose it. stages: as --stages cuts the network."""
        return PipelineOptions(self.name, self.limit, self.cap, self.chunks, stages)  # type: ignore[arg-type]

    @property
    def words(self) -> list[str]:
        """Give the options of the command line that choose it."""
        options = {"--schedule": self.name, **self.settings}
        return [word for option, value in options.items() for word in (option, str(value))]

    def __str__(self) -> str:
        return ", ".join([self.name, *(f"{name} {value}" for name, value in self._set.items())])


def candidates(
    stages: int, passes: int, blocks: int | None = None, room: float = 1.0
) -> dict[ScheduleChoice, StepSchedule]:
    """List what AUTO chooses from: every schedule that so many stages and micro-batches allow, and that keeps no more
    passes than 1F1B does on its first stage. Of those with limits the higher ones come first: where they are as fast,
    they bear delays better. Interleaved comes last, as it sends more.

    blocks: of the network, each of which is in one chunk at most. room: for so many times the passes of 1F1B.
    """
    choices = [ScheduleChoice(name) for name in NAMES if name not in _TAKES]
    limits = {min(limit, passes) for limit in (stages, -(-5 * stages // 4), 3 * stages // 2, 2 * stages)}
    for limit in sorted(limits, reverse=True):
        choices.append(ScheduleChoice("message-driven", limit))
        caps = {min(cap, limit) for cap in (1, 2, -(-limit // 2), limit)}
        choices += [ScheduleChoice("message-driven-zb", limit, cap) for cap in sorted(caps, reverse=True)]
    choices += [
        ScheduleChoice("interleaved", chunks=chunks) for chunks in (2, 4) if not blocks or chunks * stages <= blocks
    ]
    most = room * min(stages, passes)
    return {choice: schedule for choice in choices if _allows(schedule := choice.make(), stages, passes, most)}


def _allows(schedule: StepSchedule, stages: int, passes: int, most: float) -> bool:
    try:
        schedule.check(stages, passes)
    except UsageError:
        return False
    return max(sum(schedule.held(stage, stages, passes)) for stage in range(stages)) <= most * schedule.chunks
