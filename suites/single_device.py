"""The engine on one device against plain PyTorch, torch.compile and Hugging Face's transformers: the same model, batch,
number format and machine, in turns in one job; two that a device can't hold at once go one after the other.

    reframe -c suites/single_device.py --system local -r
    reframe -c suites/single_device.py --system perlmutter -n llama
    reframe -c suites/single_device.py --system local -S peers=plain -S jobs=6

A test is one model and holds a contest with each of the peers (python -m engine bench peers). A peer that isn't
installed, or that no compiler works for, is no failure: the result says why there was no contest with it. Where a
device can't hold two models, each side of a job has processes of its own, one after the other. A test starts several
jobs by itself, four unless the series or -S jobs says otherwise; the report decides by an interval over them.
"""

import reframe as rfm
from reframe.core.builtins import parameter, run_after, run_before, variable
from reframe.core.exceptions import SanityError
from reframe.utility import typecheck as typ

from engine.errors import UsageError
from engine.models.catalogue import lookup
from engine.result.peers import Compared, PeersResult, Speed, parse, peak_bytes, speed
from suites.base.engine_test import EngineTest
from suites.base.point_training import SYSTEM, OfSeries
from suites.base.series import points
from suites.base.training import Refused


@rfm.simple_test
class SingleDevice(OfSeries, EngineTest):
    """All contests of one model. device: as of every test; jobs and rounds: those of the series, unless set."""

    descr = "one device against other ways to train the same network"
    study = "single_device"
    point = parameter(points("single_device", SYSTEM.name), fmt=lambda point: str(point), loggable=True)
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
        """Raises Refused."""
        try:
            lookup(self.model)
        except UsageError as error:
            raise Refused(str(error)) from None

    def options(self) -> list[str]:
        series = self.point.series
        words = ["bench", "peers", "--model", self.model, "--grid", "1x1x1x1"]
        words += ["--device", self.device, *self.device_memory_options]
        for peer in self.peers:
            words += ["--peer", peer]
        words += ["--batch-size", str(self.point.sequences), "--precision", series.precision]
        if series.sequence:
            words += ["--seq", str(series.sequence)]
        words += ["--jobs", str(self.jobs), "--rounds", str(self.rounds)]
        return [*words, "--steps-per-round", str(self.steps_per_round), *self.peak_options(series.precision)]

    @property
    def result(self) -> PeersResult:
        """What the engine wrote."""
        return parse(self.record, "the result")

    def judge(self) -> None:
        """The engine has found both sides' losses equal before it timed them. Raises SanityError without a contest."""
        result = self.result
        if not result.comparisons:
            reasons = "; ".join(f"{asked.peer}: {asked.missing}" for asked in result.contests)
            raise SanityError(f"no contest could be held: {reasons}")

    @run_before("performance")
    def take_figures(self) -> None:
        """Of the engine, and of each peer that there was a contest with. A dry run measures nothing."""
        if self.is_dry_run():
            return
        result = self.result
        found: dict[str, tuple[float | None, str]] = {}
        for contest in result.comparisons:
            ours, peers = _speed(result, contest.ours_median_s), _speed(result, contest.peer_median_s)
            found |= {"engine_tokens_per_s": (ours.tokens_per_s, "tokens/s")}
            found |= {
                "engine_mfu": (_percent(ours.mfu), "%"),
                "engine_of_empirical": (_percent(ours.of_empirical), "%"),
            }
            found |= {f"{contest.peer}_tokens_per_s": (peers.tokens_per_s, "tokens/s")}
            found |= _ratios(contest)
            our_bytes, peer_bytes = peak_bytes(contest.measured)
            found |= {"engine_memory": (our_bytes, "B"), f"{contest.peer}_memory": (peer_bytes, "B")}
        self.add_figures(found)


def _speed(result: PeersResult, step_s: float) -> Speed:
    assert result.work is not None
    return speed(result.work, result.peaks, 1, step_s)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _ratios(contest: Compared) -> dict[str, tuple[float | None, str]]:
    """The engine's step time by the peer's, paired by round, and its interval where it is known."""
    pair = contest.paired
    assert pair is not None
    parts = {"paired_ratio": pair.ratio, "paired_ratio_low": pair.low, "paired_ratio_high": pair.high}
    return {f"{contest.peer}_{part}": (value, "x") for part, value in parts.items()}
