"""Studies of overlap have one job a point, in which the engine's variants take turns (`engine bench overlap`).

Figures are named for the flags of a variant, such as speed_up_oar_ors and hidden_oar_ors. A speed-up over none is the
median of the rounds' ratios; _low and _high are the ends of its interval of confidence 0.95, which is over the rounds
of that job, takes six of them, and speaks of no other job. The report's is over jobs: three to six (--repeat) do.
"""

import math
from typing import Any

from reframe.core.builtins import run_after
from reframe.core.exceptions import SanityError

from engine.contest.overlap import comparable, wanted_variants
from engine.errors import UsageError
from engine.grid import Grid
from engine.overlap.flags import Overlap
from suites.base.figures import Figures, percent
from suites.base.in_rounds import InTurns, times_of
from suites.base.training import Refused

LEARNING_RATE = 1e-6
"""So small that no step changes the network much: without clipping a long ablation might diverge otherwise, which
would end the job and lose what it has measured. Times don't depend on it.
"""


class Ablation(InTurns):
    """Gradients are not clipped, which would keep the optimizer from stepping a bucket while the next is summed.

    overlap: the flags whose gain is measured, all unless set, with the cache of the series. learning_rate:
    LEARNING_RATE unless set.
    """

    @run_after("init")
    def take_flags(self) -> None:
        self.learning_rate = self.learning_rate or LEARNING_RATE
        self.overlap = self.overlap or f"oar,ors,oag,cache={self.point.series.cache},data"

    @run_after("setup")
    def refuse_where_there_is_nothing_to_hide(self) -> None:
        """Apply the engine's own rules before the job waits in a queue. Raises Refused."""
        asked = [Overlap.parse(variant) for variant in self.variants()]
        wanted = wanted_variants(Overlap.parse(self.overlap), asked)
        try:
            comparable(wanted, Grid.parse(self.grid), checkpointed=self.checkpoint_activations)
        except UsageError as error:
            raise Refused(str(error)) from None

    def variants(self) -> list[str]:
        """Return the variants that are compared with none; if there are none the engine chooses."""
        return []

    def options(self) -> list[str]:
        words = ["bench", "overlap", *self.plan_options(self.corpus()), "--clip", "0"]
        for variant in self.variants():
            words += ["--variant", variant]
        return [*words, *self.round_options()]

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
