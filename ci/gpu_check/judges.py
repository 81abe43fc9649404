"""What the engine's own commands measured, judged: their result files to findings. No torch.

On a processor nothing is judged that was timed or sized there: those models are too small for it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.profiling.breakdown import AGREEMENT, break_down
from engine.result import choices, gate, metrics, peers, schema
from engine.result.gpu_check import Finding, Status, read_findings
from gpu_check.sizes import Training

MFU = 0.55
STEP_BY = {"plain": 1 / 1.1, "compile": 1.0}
HOLD, TUNED_S = 0.95, 10.0
BAND = (0.9, 1.2)
"""Of the peak by the plan, which leaves out temporaries and an allocator's roundings, and counts what is kept."""
EXPLAINED = 0.1
"""Beyond which no known reason makes a trace's difference from the record a small one."""
BY_INTERVAL = "; too much only if the whole interval is above"


@dataclass(frozen=True, slots=True)
class Judge:
    """on_gpu: whether figures are judged. peaks: advertised flop/s of the device by number format, as far as known;
    bytes_per_s: of its memory.
    """

    on_gpu: bool
    peaks: Mapping[str, float]
    bytes_per_s: float | None

    def found(self, name: str, figure: float, unit: str, good: bool, want: str, sentence: str = "") -> Finding:
        """One that is judged where anything is."""
        status: Status = "told" if not self.on_gpu else "pass" if good else "fail"
        return Finding(
            name=name, status=status, figure=figure, unit=unit, want=want if self.on_gpu else "", sentence=sentence
        )

    def own(self, out: Path) -> list[Finding]:
        """A part that judges itself."""
        return read_findings(out)

    def gemm(self, out: Path) -> list[Finding]:
        """The empirical peak."""
        result = schema.read(out)
        best = max((p for p in result.gemm if p.flops_per_s is not None), key=lambda p: p.flops_per_s or 0.0)
        rate, peak = best.flops_per_s or 0.0, self.peaks.get(result.dtype)
        share = f", {metrics.utilisation(rate, 1, peak):.0%} of the advertised peak" if peak else ""
        told = f"best at {best.size} x {best.size}{share}"
        return [_told(f"matrix products in {result.dtype}", rate / 1e12, "Tflop/s", told)]

    def memory(self, out: Path) -> list[Finding]:
        """STREAM's triad."""
        stream = schema.read(out).stream
        assert stream is not None
        rate = next(kernel.best_bytes_per_s for kernel in stream.kernels if kernel.name == "triad")
        known = self.bytes_per_s
        share = f"{metrics.of_advertised_bandwidth(rate, known):.0%} of the advertised; " if known else ""
        return [
            _told("memory bandwidth", rate / 1e9, "GB/s", f"{share}triad of arrays of {stream.array_bytes:,} bytes")
        ]

    def latency(self, out: Path) -> list[Finding]:
        """What a tiny operator costs the host."""
        times = {launch.name: launch.median_s * 1e6 for launch in schema.read(out).launches}
        others = ", ".join(f"{name} {time:.1f} µs" for name, time in times.items() if name != "dispatch")
        return [_told("launch of a tiny operator", times["dispatch"], "µs", others)]

    def matmul(self, out: Path) -> list[Finding]:
        """The tuner's choice in a second timing, and what it took."""
        result = schema.read(out)
        assert result.tuning is not None
        assert result.model is not None
        known = [shape for shape in result.tuning.again if shape.times]
        contests = [choices.by_own(shape) for shape in known]
        outcome = gate.all_of(*(contest.outcome for contest in contests))
        worst = max(contests, key=lambda contest: (contest.outcome == outcome, contest.ratio))
        holds = choices.share_that_holds(known)
        model, time_s = result.model.name, result.tuning.time_s
        shapes = f"of {len(known)} shapes in a second timing"
        return [
            self.found(
                f"tuner's choice by PyTorch's own, {model}", worst.ratio, "", outcome == "pass",
                f"at most {choices.SLOWEST:g}",
                f"{outcome}: the worst {shapes}, interval {worst.interval.low:.3f} to {worst.interval.high:.3f}",
            ),
            self.found(
                f"tuner's choices that hold, {model}", 100 * holds.low, "%", holds.low >= HOLD,
                f"at least {HOLD:.0%}", f"{gate.at_least(holds, HOLD)}: {shapes}, and of {holds.high:.0%} it may be so",
            ),
            self.found(f"tuning, {model}", time_s, "s", time_s < TUNED_S, f"less than {TUNED_S:g} s"),
        ]  # fmt: skip

    def contest(self, training: Training) -> Callable[[Path], list[Finding]]:
        """Of the engine with one peer in that training."""
        return lambda out: self._contest(peers.parse(json.loads(out.read_text()), str(out)), training)

    def _contest(self, result: peers.PeersResult, training: Training) -> list[Finding]:
        model = training.choice.resolve().name
        asked = result.contests[0]
        if not result.comparisons:
            return [
                Finding(name=f"step by that of {asked.peer}, {model}", status="not run", sentence=asked.missing or "")
            ]
        held = result.comparisons[0]
        ratio, most = held.paired, STEP_BY[held.peer]
        assert ratio is not None
        ours, theirs = peers.peak_bytes(held.measured)
        found = [
            self.found(
                f"step by that of {held.peer}, {model}", ratio.ratio, "", ratio.interval.low <= most,
                f"at most {most:.2f}{BY_INTERVAL}",
                f"{ratio}, {1e3 * held.ours_median_s:.1f} ms by "
                f"{1e3 * held.peer_median_s:.1f} ms; {training.words}",
            )
        ]  # fmt: skip
        if ours is not None and theirs is not None:
            by_theirs = metrics.memory_ratio(ours, theirs)
            told = f"{ours / 2**30:.3g} GiB by {theirs / 2**30:.3g} GiB"
            name = f"memory by that of {held.peer}, {model}"
            found.append(self.found(name, by_theirs, "", by_theirs <= 1, "at most 1", told))
        if held.peer == "plain" and ours is not None:
            found += [self._speed(result, held, model), self._planned(ours, training, model)]
        return found

    def _speed(self, result: peers.PeersResult, held: peers.Comparison, model: str) -> Finding:
        assert result.work is not None
        known = peers.Peaks(advertised=self.peaks.get(result.dtype))
        speed = peers.speed(result.work, known, 1, held.ours_median_s)
        told = f"{speed.tokens_per_s:,.0f} tokens/s, {speed.model_flops_per_s / 1e12:.3g} Tflop/s"
        if speed.mfu is None:
            why = "; no advertised peak is known, so --peak-flops has to say it" * self.on_gpu
            return _told(f"rate, {model}", speed.model_flops_per_s / 1e12, "Tflop/s", told + why)
        return self.found(f"MFU, {model}", 100 * speed.mfu, "%", speed.mfu >= MFU, f"at least {MFU:.0%}", told)

    def _planned(self, taken: float, training: Training, model: str) -> Finding:
        planned = training.needs.total
        by_plan, (low, high) = metrics.of_planned_memory(taken, planned), BAND
        told = f"{taken / 2**30:.3g} GiB by {planned / 2**30:.3g} GiB"
        return self.found(
            f"memory by the plan, {model}", by_plan, "", low <= by_plan <= high, f"{low:g} to {high:g}", told
        )

    def profile(self, out: Path) -> list[Finding]:
        """Whether the trace of a step says what the run recorded, or why not."""
        profiled = schema.read(out).profile
        assert profiled is not None
        trace = profiled.traces[0]
        if trace.file is None:
            raise schema.ResultError(f"The profile could not be written: {trace.unwritten}")
        step = break_down(Path(trace.file))
        worst = max(step.differences, key=lambda difference: difference.difference)
        allowed = EXPLAINED if worst.reason else AGREEMENT
        told = f"the {worst.figure}: {1e3 * worst.traced_s:.2f} ms, recorded {1e3 * worst.recorded_s:.2f} ms"
        return [
            self.found(
                "profile by the run's own record", 100 * worst.difference, "%", worst.difference <= allowed,
                f"at most {AGREEMENT:.0%} off, or {EXPLAINED:.0%} for a reason",
                f"{told}. {worst.reason}" if worst.reason else told,
            )
        ]  # fmt: skip


def _told(name: str, figure: float, unit: str, sentence: str) -> Finding:
    return Finding(name=name, status="told", figure=figure, unit=unit, sentence=sentence)
