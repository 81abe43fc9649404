"""Some studies have one job a point, in which sides take turns: what disturbs the machine disturbs all alike."""

from collections.abc import Sequence
from typing import Any

from reframe.core.builtins import run_after, variable
from reframe.core.exceptions import SanityError

from suites.base.figures import Figures, speed_up_figures
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

    def round_options(self) -> list[str]:
        words = ["--rounds", str(self.rounds), "--steps-per-round", str(self.steps_per_round)]
        if self.partition.is_local:  # whose jobs take as long as they take
            return words
        return [*words, "--end-within", f"{OF_THE_LIMIT * self.time_limit_s:.0f}"]

    def sides(self) -> list[dict[str, Any]]:
        """Return the sides of the contest, as the result has them."""
        contest = self.record["contest"] or {"sides": []}
        return list(contest["sides"])

    def judge_rounds(self, sides: Sequence[str]) -> None:
        """Fail unless each of these sides, the first as all others, had all of its steps in enough rounds."""
        turns = {side["name"]: [len(times) for times in side["rounds_s"]] for side in self.sides()}
        done = len(turns[sides[0]])
        expected = dict.fromkeys(sides, [self.steps_per_round] * done)
        if turns != expected:
            raise SanityError(f"the steps of each round are {turns}, but should be {expected}")
        if done < (fewest := min(self.rounds, FEWEST_ROUNDS)):
            raise SanityError(
                f"only {done} of {self.rounds} rounds fitted the job's time limit, but {fewest} are needed"
            )


def times_of(side: dict[str, Any], own: str) -> Figures:
    """Return the figures that every side of a contest has, under this name of its own."""
    found: Figures = {f"time_{own}": (side["time_per_iteration_s"], "s")}
    if ratio := side["over_base"]:
        found |= speed_up_figures(f"speed_up_{own}", ratio)
    return found
