"""Judges of what the engine's own commands measured: their result files become findings. No torch.

A check whose figure varies has a file of each of its processes, and the interval over them is what keeps a limit,
breaks it or leaves it open: one process happens to be faster or slower for as long as it lives. Three of them show how
much; until then it is assumed. On a processor nothing is judged that was timed or sized there: those models are too
small for it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engine.profiling.breakdown import AGREEMENT, break_down
from engine.result import gate, metrics, schema
from engine.result.gate import Interval, Outcome, over_jobs
from engine.result.judges import choices
from engine.result.judges import peers as peer_judge
from engine.result.schema import peers
from engine.result.schema.bench import GemmPoint
from engine.result.schema.gpu_check import Finding, read_findings
from gpu_check import profiled
from gpu_check.findings import reported
from gpu_check.sizes import TrainingSize

MFU, OF_PRODUCTS = 0.55, 2 / 3
"""The least part of the advertised peak, or of what matrix products reach where that is less, as on an MI300X."""
STEP_BY = {"plain": 1 / 1.1, "compile": 1.0}
FLAGS_BY = 1.01
HOLD, TUNED_S = 0.95, 10.0
MOST_PROCESSES = 6
"""A check has at most so many."""
LOOKS = MOST_PROCESSES
"""An interval over processes may decide so often: after one, and after each more."""
USUAL, TUNING_USUAL = 0.01, 0.1
"""Steps and rates, and the time of tuning, are assumed to differ so much from process to process on one GPU, as a
standard deviation of logarithms: nobody has measured it yet.
"""
BAND = (0.9, 1.2)
"""Peak memory by the plan, which leaves out temporaries and an allocator's roundings, and counts what is kept."""
RATE = "GB/s"
"""Kernels whose findings have this unit are shown by their share of what is advertised."""
BY_INTERVAL = "; all of its interval over processes, or beyond it to fail"


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes findings of results. on_gpu: whether figures are judged.

    peaks: the device's advertised flop/s by number format, as far as known. bytes_per_s: its memory's, as advertised.
    """

    on_gpu: bool
    peaks: Mapping[str, float]
    bytes_per_s: float | None

    def found(self, name: str, figure: float, unit: str, outcome: Outcome, want: str, sentence: str = "") -> Finding:
        """Return a finding that is judged on a GPU, and only reported elsewhere."""
        return Finding(
            name=name,
            status=outcome if self.on_gpu else "told",
            figure=figure,
            unit=unit,
            want=want if self.on_gpu else "",
            sentence=sentence,
        )

    def own(self, outs: Sequence[Path]) -> list[Finding]:
        """Return the findings of a part that judges itself, once."""
        return read_findings(outs[-1])

    def kernels(self, outs: Sequence[Path]) -> list[Finding]:
        """Return a part's own findings, with each memory rate as a share of what is advertised."""
        return [self._shared(one) if one.unit == RATE else one for one in self.own(outs)]

    def _shared(self, finding: Finding) -> Finding:
        known, rate = self.bytes_per_s, finding.figure
        if known is None or rate is None:
            return finding
        share = metrics.of_advertised_bandwidth(1e9 * rate, known)
        sentence = f"{rate:,.0f} of the advertised {known / 1e9:,.0f} GB/s: {finding.sentence}"
        return finding.model_copy(update={"figure": 100 * share, "unit": "%", "sentence": sentence})

    def flags(self, outs: Sequence[Path]) -> list[Finding]:
        """Say what all overlap flags cost, by each process's ratio."""
        found = [one for out in outs for one in read_findings(out)]
        ratios = [one.figure for one in found if one.figure is not None]
        if not ratios:
            return []
        between, words = _over_processes(ratios)
        return [
            self.found(
                found[-1].name,
                metrics.ratio_over_jobs(ratios),
                "",
                gate.at_most(between, FLAGS_BY),
                f"at most {FLAGS_BY:.2f} of the step without them{BY_INTERVAL}",
                f"{words}; the last: {found[-1].sentence}",
            )
        ]

    def gemm(self, outs: Sequence[Path]) -> list[Finding]:
        """Return the best rate of matrix products over sizes, which is the empirical peak."""
        result = schema.read(outs[-1])
        best = _best(result)
        rate, peak = best.flops_per_s or 0.0, self.peaks.get(result.dtype)
        share = f", {metrics.utilisation(rate, 1, peak):.0%} of the advertised peak" if peak else ""
        sentence = f"best at {best.size} x {best.size}{share}"
        return [reported(f"matrix products in {result.dtype}", sentence, rate / 1e12, "Tflop/s")]

    def memory(self, outs: Sequence[Path]) -> list[Finding]:
        """Return the memory bandwidth that STREAM's triad reaches."""
        stream = schema.read(outs[-1]).stream
        assert stream is not None
        rate = next(kernel.best_bytes_per_s for kernel in stream.kernels if kernel.name == "triad")
        known = self.bytes_per_s
        share = f"{metrics.of_advertised_bandwidth(rate, known):.0%} of the advertised; " if known else ""
        sentence = f"{share}triad of arrays of {stream.array_bytes:,} bytes"
        return [reported("memory bandwidth", sentence, rate / 1e9, RATE)]

    def latency(self, outs: Sequence[Path]) -> list[Finding]:
        """Say what launching a tiny operator costs the host."""
        times = {launch.name: launch.median_s * 1e6 for launch in schema.read(outs[-1]).launches}
        others = ", ".join(f"{name} {time:.1f} µs" for name, time in times.items() if name != "dispatch")
        return [reported("launch of a tiny operator", others, times["dispatch"], "µs")]

    def matmul(self, outs: Sequence[Path]) -> list[Finding]:
        """Judge the tuner's choices by a second timing in the rounds of all processes, and the time of tuning."""
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
        between, words = _over_processes(times_s, TUNING_USUAL)
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
                f"at most {TUNED_S:g} s{BY_INTERVAL}", words,
            ),
        ]  # fmt: skip

    def contest(self, training: TrainingSize) -> Callable[[Sequence[Path]], list[Finding]]:
        """Return what judges contests of the engine with one peer in that training."""
        return lambda outs: self._contest(
            [peers.parse(json.loads(out.read_text()), str(out)) for out in outs], training
        )

    def _contest(self, results: Sequence[peers.PeersResult], training: TrainingSize) -> list[Finding]:
        model = training.choice.resolve().name
        asked = results[-1].contests[0]
        measured = [job for result in results for held in result.comparisons for job in held.jobs]
        if not measured:
            return [
                Finding(name=f"step by that of {asked.peer}, {model}", status="not run", sentence=asked.missing or "")
            ]
        peer = results[-1].comparisons[0].peer
        ratio = peer_judge.paired(measured)
        between, words = _over_processes([peer_judge.paired([job]).ratio for job in measured])
        most = STEP_BY[peer]
        ours_s, theirs_s = (
            median(time_s for side in sides for time_s in peer_judge.steps(side))
            for sides in ([job.ours for job in measured], [job.peer for job in measured])
        )
        ours, theirs = peer_judge.peak_bytes(measured)
        step = self.found(
            f"step by that of {peer}, {model}",
            ratio.ratio,
            "",
            gate.at_most(between, most),
            f"at most {most:.2f}{BY_INTERVAL}",
            f"{words}; {1e3 * ours_s:.1f} ms by {1e3 * theirs_s:.1f} ms; {training.words}",
        )
        if any(job.compiled is False for job in measured):  # slower than need be, which another finding says
            sentence = f"{step.sentence}; ours ran uncompiled"
            step = step.model_copy(update={"status": "told", "want": "", "sentence": sentence})
        found = [step]
        if ours is not None and theirs is not None:
            by_theirs, allowed = metrics.memory_ratio(ours, theirs), 1 + training.wider_sums / theirs
            sentence = f"{ours / 2**30:.3g} GiB by {theirs / 2**30:.3g} GiB"
            why = ", as micro-batches are summed in fp32 here and in bf16 there" * bool(training.wider_sums)
            name, want = f"memory by that of {peer}, {model}", f"at most {allowed:.3g}{why}"
            found.append(self.found(name, by_theirs, "", _exact(by_theirs <= allowed), want, sentence))
        if peer == "plain" and ours is not None:
            found += [self._speed(results[-1], measured, training), self._planned(ours, training, model)]
        return found

    def _speed(
        self, result: peers.PeersResult, measured: Sequence[peers.PeerContest], training: TrainingSize
    ) -> Finding:
        """Give the rate beside a peer, whose memory may leave room for fewer sequences at once: it is only reported."""
        assert result.work is not None
        model = training.choice.resolve().name
        known = peers.Peaks(advertised=self.peaks.get(result.dtype))
        speeds = [peer_judge.speed(result.work, known, 1, median(peer_judge.steps(job.ours))) for job in measured]
        rate, tokens = median(s.model_flops_per_s for s in speeds), median(s.tokens_per_s for s in speeds)
        sentence = f"{tokens:,.0f} tokens/s, {rate / 1e12:.3g} Tflop/s of {training.words}"
        shares = [speed.mfu for speed in speeds if speed.mfu is not None]
        if shares:
            return reported(f"MFU beside plain, {model}", sentence, 100 * metrics.ratio_over_jobs(shares), "%")
        return reported(f"rate beside plain, {model}", sentence, rate / 1e12, "Tflop/s")

    def _planned(self, taken: float, training: TrainingSize, model: str) -> Finding:
        planned = training.needs.total
        by_plan, (low, high) = metrics.of_planned_memory(taken, planned), BAND
        sentence = f"{taken / 2**30:.3g} GiB by {planned / 2**30:.3g} GiB"
        kept = _exact(low <= by_plan <= high)
        return self.found(f"memory by the plan, {model}", by_plan, "", kept, f"{low:g} to {high:g}", sentence)

    def profile(self, training: TrainingSize, products: Path) -> Callable[[Sequence[Path]], list[Finding]]:
        """Return what judges a profile of that training. products: the result file of bf16's products, if any."""
        return lambda outs: self._profile(schema.read(outs[-1]), training, products)

    def _profile(self, result: schema.Result, training: TrainingSize, products: Path) -> list[Finding]:
        """Judge whether the trace of some steps agrees with the run's record, and how fast the others were, and why."""
        assert result.profile is not None
        assert result.model is not None
        trace, model = result.profile.traces[0], result.model.name
        if trace.file is None:
            raise schema.ResultError(f"The profile could not be written: {trace.unwritten}")
        found = break_down(Path(trace.file))
        worst = max(found.differences, key=lambda d: (d.outcome == found.outcome, d.difference))
        known = f"{worst.low:.3f} to {worst.high:.3f}" if None not in (worst.low, worst.high) else "nothing"
        lost = f"; {found.lost} collectives have no events" if found.lost else ""
        sentence = (
            f"the {worst.figure}: {known} known of {found.steps} steps, in the last {1e3 * worst.traced_s:.2f} ms, "
            f"recorded {1e3 * worst.recorded_s:.2f} ms{lost}{f'. {worst.reason}' if worst.reason else ''}"
        )
        return [
            self.found(
                "profile by the run's own record",
                100 * worst.difference,
                "%",
                found.outcome,
                f"at most {AGREEMENT:.0%} off; all of the interval over steps, or beyond it to fail",
                sentence,
            ),
            self._alone(result, training, _best(schema.read(products)).flops_per_s if products.exists() else None),
            *profiled.longest(found, model),
            profiled.energy(result, model),
        ]

    def _alone(self, result: schema.Result, training: TrainingSize, products: float | None) -> Finding:
        """Return the rate of steps that were not profiled and had the device alone, by the advertised peak.

        products: flop/s of matrix products. Only a whole network is judged: in one that is cut the head weighs more.
        """
        rate, peak = profiled.rate(result), self.peaks.get("bf16") if self.on_gpu else None
        model, sentence = training.choice.resolve().name, profiled.words(result)
        if peak is None:
            why = "; no advertised peak is known, so --peak-flops has to say it" * self.on_gpu
            return reported(f"rate alone, {model}", sentence + why, rate / 1e12, "Tflop/s")
        name, share = f"MFU alone, {model}", metrics.utilisation(rate, 1, peak)
        cut, uncompiled = training.choice.layers is not None, result.config.get("compiled") is False
        if cut or uncompiled:
            why = "no whole network fits" if cut else "the engine ran uncompiled"
            return reported(name, f"{sentence}; not judged, as {why}", 100 * share, "%")
        least, (between, words) = MFU, _over_processes([share])
        if products is not None:
            least = min(MFU, OF_PRODUCTS * metrics.utilisation(products, 1, peak))
            sentence += f"; {metrics.utilisation(rate, 1, products):.0%} of what matrix products reach"
        return self.found(
            name,
            100 * share,
            "%",
            gate.at_least(between, least),
            f"at least {least:.1%}{BY_INTERVAL}",
            f"{sentence}; {words}",
        )


def _best(result: schema.Result) -> GemmPoint:
    return max((point for point in result.gemm if point.flops_per_s is not None), key=lambda p: p.flops_per_s or 0.0)


def _exact(good: bool) -> Outcome:
    """Return the outcome of a figure that doesn't vary, as what an allocator held."""
    return "pass" if good else "fail"


def _over_processes(ratios: Sequence[float], usual: float = USUAL) -> tuple[Interval, str]:
    """Return the interval of ratios, one a process, and words such as: 0.871 to 0.902 over 3 processes."""
    interval = over_jobs(ratios, LOOKS, usual)
    assumed = interval != over_jobs(ratios, LOOKS)
    others = f", of which others are assumed to differ by {usual:.0%}" if assumed else ""
    over = f"{len(ratios)} processes" if len(ratios) > 1 else "one process"
    return interval, f"{interval.low:.3f} to {interval.high:.3f} over {over}{others}"
