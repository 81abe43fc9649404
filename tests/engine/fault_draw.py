"""Which faults there are, and so many of them by chance."""

import math
import random
import signal
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice, product

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
SAVE_EVERY = 2


class Moment(StrEnum):
    """When the signal is sent: once this has been seen, and a random while later."""

    START = "process there"
    MEETING = "result begun"
    TRAINING = "iteration"
    SAVING = "checkpoint begun"
    END = "last iteration"


WHILE_S = {Moment.START: 0.2, Moment.MEETING: 0.4, Moment.TRAINING: 0.2, Moment.SAVING: 0.02, Moment.END: 0.3}


BEFORE_THEY_MEET = (Moment.START, Moment.MEETING)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to one run. iteration: which one is awaited, from 1; after_s: how long after the moment."""

    number: int
    signal: signal.Signals
    rank: int
    moment: Moment
    iteration: int
    after_s: float

    @property
    def step(self) -> int:
        """Of the earliest checkpoint that is awaited."""
        return math.ceil(self.iteration / SAVE_EVERY) * SAVE_EVERY

    def __str__(self) -> str:
        which = {Moment.TRAINING: f" {self.iteration}", Moment.SAVING: f" {self.step}"}.get(self.moment, "")
        return f"{self.signal.name[3:]:4} rank {self.rank} {self.moment}{which} + {self.after_s:.3f} s"


def draw(faults: int, ranks: int, seed: int, few: int | None = None) -> list[Fault]:
    """So many faults: every signal at every moment in turn, otherwise at random. few: ranks that have not met."""
    chance = random.Random(seed)
    kinds = list(product(SIGNALS, Moment))
    chance.shuffle(kinds)
    return [
        Fault(
            number,
            sent,
            chance.randrange((few or ranks) if moment in BEFORE_THEY_MEET else ranks),
            moment,
            chance.randint(1, 8),
            chance.uniform(0, WHILE_S[moment]),
        )
        for number, (sent, moment) in enumerate(islice(cycle(kinds), faults))
    ]
