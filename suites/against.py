"""The engine takes turns with that of another commit, so that the machine, which both share, cancels.

    ci/nightly --against COMMIT                                               all of it, with a verdict
    reframe -c suites/against.py --system local -S Against.checkout=DIR -r    DIR: a checkout of that commit

They train what weak scaling trains at night, on data that is made up, each rank of one beside the same rank of the
other, a step in turn. A run is one job, and each set of processes is fast or slow of its own: a verdict takes several.
"""

from pathlib import Path

import reframe as rfm
from reframe.core.builtins import run_after, run_before, variable
from reframe.core.exceptions import SanityError

from engine.peers.comparison import both_sides
from suites.base.contests import PeerComparison
from suites.base.engine_test import command
from suites.base.running import NIGHTLY, NO_TURNS, Worth
from suites.base.series import AUTO, Point
from suites.base.training import PointTraining, points_of

STUDY = "against"


def in_contests(point: Point) -> bool:
    """Say whether a contest can train as the point's series does."""
    return both_sides(point.series.training) == point.series.training


@rfm.simple_test
class Against(PeerComparison, PointTraining):
    """One point. checkout: the folder of the other commit. rounds: as many as the series says, by default."""

    descr = "step time against another commit of the engine"
    study = STUDY
    worth = Worth.TRAINING
    time_limit = "8m"
    point = points_of("weak_scaling", lambda point: NIGHTLY in point.series.tags and in_contests(point))
    checkout = variable(str, value="")
    rounds = variable(int, value=0)
    steps_per_round = 1
    breakdown = False

    @run_after("init")
    def be_no_test_of_other_nights(self) -> None:
        self.tags = {STUDY, self.point.series.name}

    def own_options(self) -> list[str]:
        return []

    @run_before("setup")
    def ask_for_the_checkout(self) -> None:
        if not self.checkout:
            self.skip("no other commit is named: -S Against.checkout=DIR does, or ci/nightly --against COMMIT")

    def options(self) -> list[str]:
        checkout = Path(self.checkout).resolve()
        words = [*command("bench peers", against=checkout, grid=self.grid), *self.contest_options]
        return words + command(
            "",
            micro_batch=self.micro_batch,
            overlap=self.overlap,
            schedule=None if self.schedule == AUTO else self.schedule,
            rounds=self.rounds or self.point.series.rounds,
            jobs=1,
            steps_per_round=self.steps_per_round,
        )

    def judge(self) -> None:
        """Fail where a device couldn't hold both, as then nothing cancels. Raises SanityError."""
        super().judge()
        if any(contest["apart"] for contest in self.record["comparisons"]):
            raise SanityError(f"a device can't hold both engines, so they {NO_TURNS}: take a smaller model or batch")
