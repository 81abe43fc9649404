"""Schedules by name, with what a person sets of each and of the cut; AUTO is the fastest of some. No torch.

A new one is a class, in a file of its own or beside its like, and a row below: options, tests and contests follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from engine.errors import UsageError, nearest
from engine.overlap.tasks import ONE_BY_ONE, StepSchedule
from engine.pipeline.fixed_schedules import GPipe, Interleaved, OneFOneB, ZeroBubble
from engine.pipeline.message_driven import MessageDriven, MessageDrivenZeroBubble

AUTO = "auto"
"""Name of the fastest of candidates()."""
_SCHEDULES: Mapping[str, tuple[Callable[..., StepSchedule], tuple[str, ...]]] = {
    "one-by-one": (lambda: ONE_BY_ONE, ()),
    "gpipe": (GPipe, ()),
    "1f1b": (OneFOneB, ()),
    "interleaved": (Interleaved, ("chunks",)),
    "zero-bubble": (ZeroBubble, ()),
    "message-driven": (MessageDriven, ("limit",)),
    "message-driven-zb": (MessageDrivenZeroBubble, ("limit", "cap")),
}
"""What makes a schedule, and the settings that it takes."""
NAMES = tuple(_SCHEDULES)
if TYPE_CHECKING:
    ScheduleName = str
else:
    ScheduleName = Literal[(AUTO, *NAMES)]
BASE: ScheduleName = "1f1b"
"""Schedule that contests compare all others with."""
_SETTINGS = {"limit": ("--pipeline-limit", 1), "cap": ("--weight-limit", 1), "chunks": ("--chunks", 2)}
"""Option and least value of each setting."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options for a network that is cut, but for schedule, which also orders the passes of one stage."""

    schedule: ScheduleName = "auto"
    """what stages do when; auto: what a simulation finds fastest within memory (schedules: engine/README.md)"""
    pipeline_limit: Annotated[int | None, Parameter(metavar="PASSES")] = None
    """micro-batches that are under way at most, of the message-driven schedules (default: the stages)"""
    weight_limit: Annotated[int | None, Parameter(metavar="PASSES")] = None
    """of them, those whose weight gradients wait, of message-driven-zb (default: all)"""
    chunks: int | None = None
    """parts of a stage's blocks, of interleaved (default: 2)"""
    stages: Annotated[str | None, Parameter(metavar="N,N..")] = None
    """blocks of each stage, such as 5,7,7,5, chunk after chunk (default: stages take equal time)"""


DEFAULT = PipelineOptions()


@dataclass(frozen=True, slots=True)
class ScheduleChoice:
    """A schedule's name and settings; those that are None are as the schedule has them."""

    name: str
    limit: int | None = None
    cap: int | None = None
    chunks: int | None = None

    def make(self) -> StepSchedule:
        """Make the schedule. Raises UsageError for an unknown name, and for what it doesn't take or allow."""
        if self.name not in _SCHEDULES:
            raise UsageError(f"There is no schedule {self.name!r}: {nearest(self.name, [*NAMES, AUTO])}")
        make, taken = _SCHEDULES[self.name]
        for setting, value in self._set.items():
            option, least = _SETTINGS[setting]
            if setting not in taken:
                takers = " or ".join(name for name, (_, settings) in _SCHEDULES.items() if setting in settings)
                raise UsageError(
                    f"--schedule {self.name} takes no {option}: leave it out, or choose --schedule {takers}."
                )
            if value < least:
                raise UsageError(f"{option} is a number from {least} up, but {value} was given.")
        return make(**self._set)

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
        """Options of the command line that set something of the schedule, and to what."""
        return {_SETTINGS[name][0]: value for name, value in self._set.items()}

    def options(self, stages: str | None = None) -> PipelineOptions:
        """Return the options of a pipeline that choose it. stages: as --stages cuts the network."""
        return PipelineOptions(self.name, self.limit, self.cap, self.chunks, stages)

    @property
    def words(self) -> list[str]:
        """Options of the command line that choose it."""
        options = {"--schedule": self.name, **self.settings}
        return [word for option, value in options.items() for word in (option, str(value))]

    def __str__(self) -> str:
        return ", ".join([self.name, *(f"{name} {value}" for name, value in self._set.items())])


def candidates(
    stages: int, passes: int, blocks: int | None = None, room: float = 1.0
) -> dict[ScheduleChoice, StepSchedule]:
    """List what AUTO chooses from: every schedule that the stages and micro-batches allow, and that keeps no more
    passes than 1F1B does on its first stage. Of those with limits the higher ones come first: where they are as fast,
    they bear delays better. Interleaved comes last, as it sends more.

    blocks: of the network, each of which is in one chunk at most. room: factor on the passes of 1F1B.
    """
    choices = [ScheduleChoice(name) for name, (_, settings) in _SCHEDULES.items() if not settings]
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
    return max(sum(schedule.live_passes(stage, stages, passes)) for stage in range(stages)) <= most * schedule.chunks
