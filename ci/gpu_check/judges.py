"""What the engine's own commands measured, judged: their result files to findings. No torch.

A check whose figure varies has a file of each of its processes, and the interval over them is what keeps a limit,
breaks it or doesn't tell: one process happens to be faster or slower for as long as it lives. How much, three of them
tell; until then it is assumed. On a processor nothing is judged that was timed or sized there: those models are too
small for it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engine.profiling.breakdown import AGREEMENT, break_down
from engine.result import choices, gate, metrics, peers, schema
from engine.result.device import GemmPoint
from engine.result.gate import Outcome
from engine.result.gpu_check import Finding, read_findings
from engine.result.interval import Interval, over_jobs
from gpu_check import profiled
from gpu_check.sizes import Training

MFU, OF_PRODUCTS = 0.55, 2 / 3
"""Of the advertised peak, or of what matrix products reach where that is less: of an MI300X's peak they reach half."""
STEP_BY = {"plain": 1 / 1.1, "compile": 1.0}
FLAGS_BY = 1.01
HOLD, TUNED_S = 0.95, 10.0
MOST_PROCESSES = 6
"""Of a check."""
LOOKS = MOST_PROCESSES
"""How often an interval over processes may decide: of one, and of each more."""
USUAL, TUNING_USUAL = 0.01, 0.1
"""By how much steps, rates and the time of tuning differ from process to process on one GPU, as a standard deviation of
logarithms. Assumed: none has told yet.
"""
BAND = (0.9, 1.2)
"""Of the peak by the plan, which leaves out temporaries and an allocator's roundings, and counts what is kept."""
RATE = "GB/s"
"""Of findings of kernels, whose share of what is advertised is told."""
BY_INTERVAL = "; all of its interval over processes, or beyond it to fail"


@dataclass(frozen=True, slots=True)
class Judge:
    """on_gpu: whether figures are judged. peaks: advertised flop/s of the device by number format, as far as known;
    bytes_per_s: of its memory.
    """

    on_gpu: bool
    peaks: Mapping[str, float]
    bytes_per_s: float | None

    def found(self, name: str, figure: float, unit: str, outcome: Outcome, want: str, sentence: str = "") -> Finding:
        """One that is judged where anything is."""
        return Finding(
            name=name, status=outcome if self.on_gpu else "told", figure=figure, unit=unit,
            want=want if self.on_gpu else "", sentence=sentence,
        )  # fmt: skip

    def own(self, outs: Sequence[Path]) -> list[Finding]:
        """A part that judges itself, once."""
        return read_findings(outs[-1])

    def kernels(self, outs: Sequence[Path]) -> list[Finding]:
        """The same, and of each rate of memory its share of what is advertised."""
        return [self._shared(one) if one.unit == RATE else one for one in self.own(outs)]

    def _shared(self, finding: Finding) -> Finding:
        known, rate = self.bytes_per_s, finding.figure
        if known is None or rate is None:
            return finding
        share = metrics.of_advertised_bandwidth(1e9 * rate, known)
        told = f"{rate:,.0f} of the advertised {known / 1e9:,.0f} GB/s: {finding.sentence}"
        return finding.model_copy(update={"figure": 100 * share, "unit": "%", "sentence": told})

    def flags(self, outs: Sequence[Path]) -> list[Finding]:
        """What all overlap flags cost, by the ratio that each process tells."""
        told = [one for out in outs for one in read_findings(out)]
        ratios = [one.figure for one in told if one.figure is not None]
        if not ratios:
            return []
        between = over_jobs(ratios, LOOKS, USUAL)
        return [
            self.found(
                told[-1].name, metrics.ratio_over_jobs(ratios), "", gate.at_most(between, FLAGS_BY),
                f"at most {FLAGS_BY:.2f} of the step without them{BY_INTERVAL}",
                f"{_between(between, len(ratios), USUAL)}; the last: {told[-1].sentence}",
            )
        ]  # fmt: skip

    def gemm(self, outs: Sequence[Path]) -> list[Finding]:
        """The empirical peak."""
        result = schema.read(outs[-1])
        best = _best(result)
        rate, peak = best.flops_per_s or 0.0, self.peaks.get(result.dtype)
        share = f", {metrics.utilisation(rate, 1, peak):.0%} of the advertised peak" if peak else ""
        told = f"best at {best.size} x {best.size}{share}"
        return [_told(f"matrix products in {result.dtype}", rate / 1e12, "Tflop/s", told)]

    def memory(self, outs: Sequence[Path]) -> list[Finding]:
        """STREAM's triad."""
        stream = schema.read(outs[-1]).stream
        assert stream is not None
        rate = next(kernel.best_bytes_per_s for kernel in stream.kernels if kernel.name == "triad")
        known = self.bytes_per_s
        share = f"{metrics.of_advertised_bandwidth(rate, known):.0%} of the advertised; " if known else ""
        return [_told("memory bandwidth", rate / 1e9, RATE, f"{share}triad of arrays of {stream.array_bytes:,} bytes")]

    def latency(self, outs: Sequence[Path]) -> list[Finding]:
        """What a tiny operator costs the host."""
        times = {launch.name: launch.median_s * 1e6 for launch in schema.read(outs[-1]).launches}
        others = ", ".join(f"{name} {time:.1f} µs" for name, time in times.items() if name != "dispatch")
        return [_told("launch of a tiny operator", times["dispatch"], "µs", others)]

    def matmul(self, outs: Sequence[Path]) -> list[Finding]:
        """The tuner's choices in a second timing, by the rounds of all processes, and what tuning took each of them."""
        results = [schema.read(out) for out in outs]
        tunings = [result.tuning for result in results if result.tuning is not None]
        assert results[-1].model is not None
        known = [
            timed
            for same in zip(*(tuning.again for tuning in tunings), strict=True)
            if (timed := [shape for shape in same if shape.times])
        ]
        looks = MOST_PROCESSES * choices.LOOKS
        contests = [choices.by_own(*timed, looks=looks) for timed in known]
        outcome = gate.all_of(*(contest.outcome for contest in contests))
        worst = max(contests, key=lambda contest: (contest.outcome == outcome, contest.ratio))
        holds = choices.share_that_holds([choices.by_fastest(*timed, looks=looks) for timed in known])
        model, times_s = results[-1].model.name, [tuning.time_s for tuning in tunings]
        between = over_jobs(times_s, LOOKS, TUNING_USUAL)
        shapes = f"of {len(known)} shapes in a second timing"
        return [
            self.found(
                f"tuner's choice by PyTorch's own, {model}", worst.ratio, "", outcome, f"at most {choices.SLOWEST:g}",
                f"the worst {shapes}, interval {worst.interval.low:.3f} to {worst.interval.high:.3f}",
            ),
            self.found(
                f"tuner's choices that hold, {model}", 100 * holds.low, "%", gate.at_least(holds, HOLD),
                f"at least {HOLD:.0%}", f"{shapes}, and of {holds.high:.0%} it may be so",
            ),
            self.found(
                f"tuning, {model}", median(times_s), "s", gate.at_most(between, TUNED_S),
                f"at most {TUNED_S:g} s{BY_INTERVAL}", _between(between, len(times_s), TUNING_USUAL),
            ),
        ]  # fmt: skip

    def contest(self, training: Training) -> Callable[[Sequence[Path]], list[Finding]]:
        """Of the engine with one peer in that training."""
        return lambda outs: self._contest(
            [peers.parse(json.loads(out.read_text()), str(out)) for out in outs], training
        )

    def _contest(self, results: Sequence[peers.PeersResult], training: Training) -> list[Finding]:
        model = training.choice.resolve().name
        asked = results[-1].contests[0]
        measured = [job for result in results for held in result.comparisons for job in held.measured]
        if not measured:
            return [
                Finding(name=f"step by that of {asked.peer}, {model}", status="not run", sentence=asked.missing or "")
            ]
        peer = results[-1].comparisons[0].peer
        ratio = peers.paired(measured)
        between = over_jobs([peers.paired([job]).ratio for job in measured], LOOKS, USUAL)
        most = STEP_BY[peer]
        ours_s, theirs_s = (
            median(time_s for side in sides for time_s in peers.steps(side))
            for sides in ([job.ours for job in measured], [job.peer for job in measured])
        )
        ours, theirs = peers.peak_bytes(measured)
        step = self.found(
            f"step by that of {peer}, {model}", ratio.ratio, "", gate.at_most(between, most),
            f"at most {most:.2f}{BY_INTERVAL}",
            f"{_between(between, len(measured), USUAL)}; {1e3 * ours_s:.1f} ms by {1e3 * theirs_s:.1f} ms; "
            f"{training.words}",
        )  # fmt: skip
        if any(job.compiled is False for job in measured):  # slower than need be, which another finding says
            sentence = f"{step.sentence}; ours ran uncompiled"
            step = step.model_copy(update={"status": "told", "want": "", "sentence": sentence})
        found = [step]
        if ours is not None and theirs is not None:
            by_theirs, allowed = metrics.memory_ratio(ours, theirs), 1 + training.wider_sums / theirs
            told = f"{ours / 2**30:.3g} GiB by {theirs / 2**30:.3g} GiB"
            why = ", as micro-batches are summed in fp32 here and in bf16 there" * bool(training.wider_sums)
            name, want = f"memory by that of {peer}, {model}", f"at most {allowed:.3g}{why}"
            found.append(self.found(name, by_theirs, "", _exact(by_theirs <= allowed), want, told))
        if peer == "plain" and ours is not None:
            found += [self._speed(results[-1], measured, training), self._planned(ours, training, model)]
        return found

    def _speed(self, result: peers.PeersResult, measured: Sequence[peers.Measured], training: Training) -> Finding:
        """Beside another side's memory, for which fewer sequences may be computed at once: so it is only told."""
        assert result.work is not None
        model = training.choice.resolve().name
        known = peers.Peaks(advertised=self.peaks.get(result.dtype))
        speeds = [peers.speed(result.work, known, 1, median(peers.steps(job.ours))) for job in measured]
        rate, tokens = median(s.model_flops_per_s for s in speeds), median(s.tokens_per_s for s in speeds)
        told = f"{tokens:,.0f} tokens/s, {rate / 1e12:.3g} Tflop/s of {training.words}"
        shares = [speed.mfu for speed in speeds if speed.mfu is not None]
        if shares:
            return _told(f"MFU beside plain, {model}", 100 * metrics.ratio_over_jobs(shares), "%", told)
        return _told(f"rate beside plain, {model}", rate / 1e12, "Tflop/s", told)

    def _planned(self, taken: float, training: Training, model: str) -> Finding:
        planned = training.needs.total
        by_plan, (low, high) = metrics.of_planned_memory(taken, planned), BAND
        told = f"{taken / 2**30:.3g} GiB by {planned / 2**30:.3g} GiB"
        kept = _exact(low <= by_plan <= high)
        return self.found(f"memory by the plan, {model}", by_plan, "", kept, f"{low:g} to {high:g}", told)

    def profile(self, training: Training, products: Path) -> Callable[[Sequence[Path]], list[Finding]]:
        """Of that training. products: the result of matrix products in bf16, if they could be measured."""
        return lambda outs: self._profile(schema.read(outs[-1]), training, products)

    def _profile(self, result: schema.Result, training: Training, products: Path) -> list[Finding]:
        """Whether the trace of some steps says what the run recorded, how fast the others were, where their time goes,
        and their energy.
        """
        assert result.profile is not None
        assert result.model is not None
        trace, model = result.profile.traces[0], result.model.name
        if trace.file is None:
            raise schema.ResultError(f"The profile could not be written: {trace.unwritten}")
        found = break_down(Path(trace.file))
        worst = max(found.differences, key=lambda d: (d.outcome == found.outcome, d.difference))
        between = (
            f"{worst.low:.3f} to {worst.high:.3f}" if worst.low is not None and worst.high is not None else "nothing"
        )
        told = (
            f"the {worst.figure}: {between} known of {found.steps} steps, in the last {1e3 * worst.traced_s:.2f} ms, "
        )
        told += (
            f"recorded {1e3 * worst.recorded_s:.2f} ms{f'; {found.lost} collectives have no events' * bool(found.lost)}"
        )
        return [
            self.found(
                "profile by the run's own record", 100 * worst.difference, "%", found.outcome,
                f"at most {AGREEMENT:.0%} off; all of the interval over steps, or beyond it to fail",
                f"{told}. {worst.reason}" if worst.reason else told,
            ),
            self._alone(result, training, _best(schema.read(products)).flops_per_s if products.exists() else None),
            *profiled.longest(found, model),
            profiled.energy(result, model),
        ]  # fmt: skip

    def _alone(self, result: schema.Result, training: Training, products: float | None) -> Finding:
        """The rate of steps that were not profiled, with nothing beside them on the device, by the advertised peak.

        products: flop/s of matrix products. Only a whole network is judged: in one that is cut the head weighs more.
        """
        rate, peak = profiled.rate(result), self.peaks.get("bf16") if self.on_gpu else None
        model, told = training.choice.resolve().name, profiled.words(result)
        if peak is None:
            why = "; no advertised peak is known, so --peak-flops has to say it" * self.on_gpu
            return _told(f"rate alone, {model}", rate / 1e12, "Tflop/s", told + why)
        name, share = f"MFU alone, {model}", metrics.utilisation(rate, 1, peak)
        cut, uncompiled = training.choice.layers is not None, result.config.get("compiled") is False
        if cut or uncompiled:
            why = "no whole network fits" if cut else "the engine ran uncompiled"
            return _told(name, 100 * share, "%", f"{told}; not judged, as {why}")
        least, between = MFU, over_jobs([share], LOOKS, USUAL)
        if products is not None:
            least = min(MFU, OF_PRODUCTS * metrics.utilisation(products, 1, peak))
            told += f"; {metrics.utilisation(rate, 1, products):.0%} of what matrix products reach"
        return self.found(
            name, 100 * share, "%", gate.at_least(between, least), f"at least {least:.1%}{BY_INTERVAL}",
            f"{told}; {_between(between, 1, USUAL)}",
        )  # fmt: skip


def _best(result: schema.Result) -> GemmPoint:
    """Of all sizes."""
    return max((point for point in result.gemm if point.flops_per_s is not None), key=lambda p: p.flops_per_s or 0.0)


def _told(name: str, figure: float, unit: str, sentence: str) -> Finding:
    return Finding(name=name, status="told", figure=figure, unit=unit, sentence=sentence)


def _exact(good: bool) -> Outcome:
    """Of a figure that doesn't vary, as what an allocator held."""
    return "pass" if good else "fail"


def _between(interval: Interval, processes: int, usual: float) -> str:
    """0.871 to 0.902 over 3 processes."""
    few = f", of which others are assumed to differ by {usual:.0%}" if processes < 3 else ""
    over = f"{processes} processes" if processes > 1 else "one process"
    return f"{interval.low:.3f} to {interval.high:.3f} over {over}{few}"
