"""A test that compares the engine with one peer, by `engine bench peers`."""

from typing import Any

import reframe as rfm
from reframe.core.builtins import variable
from reframe.core.exceptions import SanityError

from engine.peers.memory import UNFIT
from suites.base.figures import Figures


class PeerComparison(rfm.RegressionTestPlugin):
    """An EngineTest whose figures are the ratio of the engine's step time by the peer's, and both times."""

    record: dict[str, Any]
    steps_per_round = variable(int, value=2)

    def judge(self) -> None:
        """The engine has found both sides' losses equal before it timed them. Raises SanityError."""
        check_one_comparison(self.record)

    def figures(self) -> Figures:
        found: Figures = {}
        for contest in self.record["comparisons"]:
            pair = contest["paired"]
            found = {
                "ratio": (contest["ratio"], "x"),
                "paired_ratio": (pair["ratio"], "x"),
                "paired_ratio_low": (pair["low"], "x"),
                "paired_ratio_high": (pair["high"], "x"),
                "engine_step": (contest["ours_median_s"], "s"),
                "peer_step": (contest["peer_median_s"], "s"),
            }
        return found


def check_one_comparison(record: dict[str, Any]) -> None:
    """Raise SanityError unless `bench peers` held one contest, or says that it doesn't fit, which gives no figures."""
    reasons = [asked["missing"] for asked in record["contests"] if asked["missing"]]
    for reason in reasons:
        if UNFIT not in reason:
            raise SanityError(f"undecided: the contest was skipped, as {reason}")
    if len(record["comparisons"]) + len(reasons) != 1:
        raise SanityError(f"the result has {len(record['comparisons'])} contests instead of one")
