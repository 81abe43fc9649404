"""Some studies have one job a point, in which sides take turns: what disturbs the machine disturbs all alike."""

from collections.abc import Mapping, Sequence

from reframe.core.builtins import run_after, variable
from reframe.core.exceptions import SanityError

from suites.base.point_training import PointTraining

OF_THE_LIMIT = 0.8
"""Rounds may fill this part of a job's time limit: the rest is for ranks that start late, and for the result."""
FEWEST_ROUNDS = 3
"""A median of fewer says nothing."""


class InTurns(PointTraining):
    """A job begins no round that its time limit might end. rounds: those of the series unless set."""

    rounds = variable(int, value=0)
    steps_per_round = variable(int, value=1)

    @run_after("init")
    def take_rounds(self) -> None:
        self.rounds = self.rounds or self.point.series.rounds

    def own_options(self) -> list[str]:
        return []

    def turn_options(self) -> list[str]:
        words = ["--rounds", str(self.rounds), "--steps-per-round", str(self.steps_per_round)]
        if self.partition.is_local:  # whose jobs take as long as they take
            return words
        return [*words, "--end-within", f"{OF_THE_LIMIT * self.time_limit_s:.0f}"]

    def judge_turns(self, sides: Sequence[str], rounds_s: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Fail unless each side, the first as all others, had all of its steps in enough rounds."""
        turns = {side: [len(times) for times in rounds] for side, rounds in rounds_s.items()}
        done = len(turns[sides[0]])
        expected = dict.fromkeys(sides, [self.steps_per_round] * done)
        if turns != expected:
            raise SanityError(f"the steps of each round are {turns}, but should be {expected}")
        if done < (fewest := min(self.rounds, FEWEST_ROUNDS)):
            raise SanityError(
                f"only {done} of {self.rounds} rounds fitted the job's time limit, but {fewest} are needed"
            )
