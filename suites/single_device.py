"""On one device the engine takes turns with plain PyTorch, torch.compile and Hugging Face's transformers in one job:
the model, batch, number format and machine are the same. Two that a device can't hold at once go one after the other.

    reframe -c suites/single_device.py --system local -r
    reframe -c suites/single_device.py --system perlmutter -n llama
    reframe -c suites/single_device.py --system local -S peers=plain -S jobs=6

A test is one model and holds a contest with each of the peers (python -m engine bench peers). A peer that isn't
installed, or that no compiler works for, is no failure: the result says why there was no contest with it. Where a
device can't hold two models, each side of a job has processes of its own, one after the other. A test starts several
jobs by itself, four unless the series or -S jobs says otherwise; the report decides by an interval over them.
"""

import reframe as rfm
from reframe.core.builtins import run_after, run_before, variable
from reframe.core.exceptions import SanityError
from reframe.utility import typecheck as typ

from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.result.judges.peers import peak_bytes, speed
from engine.result.schema.peers import PeersResult, parse
from suites.base.engine_test import EngineTest, command
from suites.base.figures import Figures, percent
from suites.base.training import OfSeries, Refused, points_of


@rfm.simple_test
class SingleDevice(OfSeries, EngineTest):
    """All contests of one model. jobs, rounds: by default as many as the series says."""

    descr = "one device against other ways to train the same network"
    study = "single_device"
    point = points_of("single_device")
    peers = variable(typ.List[str], value=["plain", "compile", "transformers"], loggable=True)
    model = variable(str, value="", loggable=True)
    jobs = variable(int, value=0)
    rounds = variable(int, value=0)
    steps_per_round = variable(int, value=2)

    @run_after("init")
    def take_turns(self) -> None:
        self.jobs, self.rounds = self.jobs or self.point.series.jobs, self.rounds or self.point.series.rounds

    @run_before("setup")
    def refuse_an_unknown_model(self) -> None:
        """Refuse a model that the catalogue doesn't have. Raises Refused."""
        try:
            lookup(self.model)
        except UsageError as error:
            raise Refused(str(error)) from None

    def options(self) -> list[str]:
        series = self.point.series
        words = command("bench peers", model=self.model, grid="1x1x1x1", device=self.device)
        words += [*self.device_memory_options, *command("", peer=self.peers, batch_size=self.point.sequences)]
        words += command("", precision=series.precision, seq=series.sequence, jobs=self.jobs, rounds=self.rounds)
        return [*words, *command("", steps_per_round=self.steps_per_round), *self.peak_options(series.precision)]

    @property
    def result(self) -> PeersResult:
        return parse(self.record, "the result")

    def judge(self) -> None:
        """Check the contest, whose losses were found equal before it was timed. Raises SanityError without one."""
        result = self.result
        if not result.comparisons:
            reasons = "; ".join(f"{asked.peer}: {asked.missing}" for asked in result.contests)
            raise SanityError(f"no contest could be held: {reasons}")

    def figures(self) -> Figures:
        """Return the speed and memory of the engine, and of each peer that there was a contest with."""
        found: Figures = {}
        work, peaks = self.result.work, self.result.peaks
        for contest in self.result.comparisons:
            pair, peer = contest.paired, contest.peer
            assert pair is not None
            assert work is not None
            ours, peers = (speed(work, peaks, 1, s) for s in (contest.ours_median_s, contest.peer_median_s))
            our_bytes, peer_bytes = peak_bytes(contest.jobs)
            found |= {
                "engine_tokens_per_s": (ours.tokens_per_s, "tokens/s"),
                "engine_mfu": (percent(ours.mfu), "%"),
                "engine_of_empirical": (percent(ours.of_empirical), "%"),
                "engine_memory": (our_bytes, "B"),
                f"{peer}_tokens_per_s": (peers.tokens_per_s, "tokens/s"),
                f"{peer}_memory": (peer_bytes, "B"),
                f"{peer}_paired_ratio": (pair.ratio, "x"),
                f"{peer}_paired_ratio_low": (pair.low, "x"),
                f"{peer}_paired_ratio_high": (pair.high, "x"),
            }
        return found
