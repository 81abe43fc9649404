"""Studies with one job a point, in which sides take turns: what disturbs the machine disturbs all alike."""

import math
from collections.abc import Sequence
from typing import Any

from reframe.core.builtins import run_after, variable
from reframe.core.exceptions import SanityError

from engine.contest.overlap import choose_variants, drop_incomparable
from engine.errors import UsageError
from engine.grid import Grid
from engine.overlap.flags import Overlap
from suites.base.engine_test import command
from suites.base.figures import Figures, percent, speed_up_figures
from suites.base.training import PointTraining, Refused

OF_THE_LIMIT = 0.8
"""Rounds may fill this part of a job's time limit: the rest is for ranks that start late, and for the result."""
FEWEST_ROUNDS = 3
"""A median of fewer says nothing."""


class InTurns(PointTraining):
    """Job that begins no round that its time limit might end. rounds: those of the series unless set."""

    rounds = variable(int, value=0)
    steps_per_round = variable(int, value=1)

    @run_after("init")
    def take_rounds(self) -> None:
        self.rounds = self.rounds or self.point.series.rounds

    def own_options(self) -> list[str]:
        return []

    def round_options(self) -> list[str]:
        local = self.partition.is_local  # whose jobs take as long as they take
        end = None if local else f"{OF_THE_LIMIT * self.time_limit_s:.0f}"
        return command("", rounds=self.rounds, steps_per_round=self.steps_per_round, end_within=end)

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
            raise SanityError(f"only {done} of {self.rounds} rounds fitted the time limit, but {fewest} are needed")


def times_of(side: dict[str, Any], own: str) -> Figures:
    """Return the figures that every side of a contest has, under this name of its own."""
    found: Figures = {f"time_{own}": (side["time_per_iteration_s"], "s")}
    if ratio := side["over_base"]:
        found |= speed_up_figures(f"speed_up_{own}", ratio)
    return found


LEARNING_RATE = 1e-6
"""So small that no step changes the network much: without clipping a long ablation might diverge otherwise, which
would end the job and lose what it has measured. Times don't depend on it.
"""


class Ablation(InTurns):
    """Flags of overlap in turns. Clipping would keep the optimizer from stepping a bucket while the next is summed.

    overlap: the flags whose gain is measured, all unless set, with the cache of the series. learning_rate:
    LEARNING_RATE unless set.
    """

    learning_rate = LEARNING_RATE

    @run_after("init")
    def take_flags(self) -> None:
        self.overlap = self.overlap or f"oar,ors,oag,cache={self.point.series.cache},data"

    @run_after("setup")
    def refuse_where_there_is_nothing_to_hide(self) -> None:
        """Apply the engine's own rules before the job waits in a queue. Raises Refused."""
        asked = [Overlap.parse(variant) for variant in self.variants()]
        wanted = choose_variants(Overlap.parse(self.overlap), asked)
        try:
            drop_incomparable(wanted, Grid.parse(self.grid), checkpointed=self.checkpoint_activations)
        except UsageError as error:
            raise Refused(str(error)) from None

    def variants(self) -> list[str]:
        """Return the variants that are compared with none; if there are none the engine chooses."""
        return []

    def options(self) -> list[str]:
        words = ["bench", "overlap", *self.plan_options(self.corpus())]
        return [
            *words,
            *command("", clip=0 if self.clip is None else None, variant=self.variants()),
            *self.round_options(),
        ]

    def judge(self) -> None:
        losses = [step["loss"] for step in self.record["iterations"]]
        if not all(map(math.isfinite, losses)):
            raise SanityError(f"a loss is not a number: {losses}")
        self.judge_rounds(self.record["config"]["variants"])

    def figures(self) -> Figures:
        return {name: figure for variant in self.sides() for name, figure in figures_of(variant).items()}


def figures_of(variant: dict[str, Any]) -> Figures:
    own = "_".join(word.partition("=")[0] for word in variant["name"].split(","))
    breakdown = variant["breakdown"] or {}
    return times_of(variant, own) | {
        f"hidden_{own}": (percent(breakdown.get("share_hidden")), "%"),
        f"step_by_bound_{own}": ((breakdown.get("bound") or {}).get("step_by_bound"), "x"),
        f"share_of_greatest_gain_{own}": (percent(variant["share_of_greatest_gain"]), "%"),
    }
