"""Breakdown of a profiled step by its trace, compared with the run's own record. No torch.

A trace agrees with the record if every figure does: the whole interval of the traced by the recorded, over the steps of
the trace, lies within AGREEMENT of 1. It disagrees if one lies outside, or events are missing. Of fewer than six steps
nothing is known beyond these steps: then it is undecided, and so is a figure that lies outside by the trace's ends of
collectives and does not by those that the run noted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from engine.profiling import trace
from engine.profiling.ran import Ran, read_step
from engine.result import gate, metrics
from engine.result.gate import NOTHING_KNOWN, over_rounds
from engine.result.schema.profile import Difference, RecordedStep, TraceBreakdown
from engine.result.schema.step import AxisTime

AGREEMENT = 0.02
NOTED_LATE = (
    "The run notes the end of a collective once gloo's thread has its turn with Python's lock, up to {late_ms:.1f} ms "
    "after gloo's own end of it in the trace; with the ends that the run noted the trace has {noted_s:.4f} s."
)


class _Figure(NamedTuple):
    """Figure of one step by the trace and by the record, in seconds."""

    traced_s: float
    recorded_s: float
    step_s: float
    noted_s: float | None
    """By the trace with the ends of collectives that the run noted, where it has them."""

    @property
    def ratio(self) -> float:
        """Traced by recorded, as metrics.trace_by_record has it."""
        return metrics.trace_by_record(self.traced_s, self.recorded_s, self.step_s)

    @property
    def noted(self) -> float:
        """Ratio with the noted ends, or where there are none the ratio."""
        return self.ratio if self.noted_s is None else self._replace(traced_s=self.noted_s).ratio


def _agrees(ratio: float) -> bool:
    return abs(ratio - 1) <= AGREEMENT


def break_down(path: Path, iteration: int | None = None) -> TraceBreakdown:
    """Break down one step of a trace, the last unless an iteration is named. Raises TraceError."""
    steps = trace.read(path)
    place = trace.place_of(path, steps, iteration)
    try:
        every = [read_step(step) for step in steps]
    except (KeyError, TypeError, ValueError):
        raise trace.TraceError(f"{path} is damaged: its events lack what a profile has. Take it once more.") from None
    compared = [_compare(one, step.recorded) for one, step in zip(every, steps, strict=True)]
    step, ran, lost = steps[place], every[place], sum(one.lost for one in every)
    differences = tuple(
        _difference(figure, of, [one[figure] for one in compared if figure in one], ran)
        for figure, of in compared[place].items()
    )
    outcome = gate.all_of(*(difference.outcome for difference in differences))
    work_s, copies_s, rest_s = ran.split
    return TraceBreakdown(
        trace=str(path),
        **step.about.model_dump(include={"rank", "ranks", "grid", "overlap", "device"}),
        iteration=step.recorded.iteration,
        step_s=ran.step_s,
        compute_s=ran.step_s - ran.exposed_s,
        work_s=work_s,
        copies_s=copies_s,
        rest_s=rest_s,
        exposed_s=ran.exposed_s,
        hidden_s=ran.hidden_s,
        share_hidden=metrics.share_hidden(ran.hidden_s, ran.exposed_s),
        axes=ran.axes(),
        lanes=ran.lanes(),
        operations=ran.by_operation(),
        layers=ran.by_layer(),
        differences=differences,
        agrees=not ran.lost and all(_agrees(one.ratio) for one in compared[place].values()),
        steps=len(steps),
        lost=lost,
        outcome="fail" if lost else outcome,
        notes=tuple(ran.notes),
    )


def _difference(figure: str, of: _Figure, steps: Sequence[_Figure], ran: Ran) -> Difference:
    """Judge the difference in one step with the figure in all steps."""
    between, noted = (over_rounds(ratios) for ratios in ([one.ratio for one in steps], [one.noted for one in steps]))
    outcome = gate.within(between, 1 - AGREEMENT, 1 + AGREEMENT)
    if outcome == "fail" and gate.within(noted, 1 - AGREEMENT, 1 + AGREEMENT) != "fail":
        outcome = "undecided"
    known, reason = between != NOTHING_KNOWN, None
    if not _agrees(of.ratio) and _agrees(of.noted):
        ends = zip(ran.collectives_as_noted, ran.collectives, strict=False)
        late_s = max((late.done - f.done for late, f in ends), default=0.0)
        reason = NOTED_LATE.format(late_ms=1e3 * late_s, noted_s=of.noted_s)
    return Difference(
        figure=figure,
        traced_s=of.traced_s,
        recorded_s=of.recorded_s,
        difference=abs(of.ratio - 1),
        reason=reason,
        low=between.low if known else None,
        high=between.high if known else None,
        outcome=outcome,
    )


def _compare(ran: Ran, recorded: RecordedStep) -> dict[str, _Figure]:
    """Compare every figure of a step that the trace has, by name."""
    traced, own, as_noted = _name_figures(ran, ran.axes()), _name_figures(recorded, recorded.axes), ran.as_noted()
    noted = {} if as_noted is None else _name_figures(as_noted, as_noted.axes())
    return {
        figure: _Figure(traced.get(figure, 0.0), own.get(figure, 0.0), recorded.step_s, noted.get(figure))
        for figure in dict.fromkeys([*own, *traced])
    }


def _name_figures(step: Ran | RecordedStep, axes: Sequence[AxisTime]) -> dict[str, float]:
    figures = {
        "step": step.step_s,
        "compute": step.step_s - step.exposed_s,
        "exposed": step.exposed_s,
        "hidden": step.hidden_s,
    }
    for axis in axes:
        figures |= {f"exposed along {axis.axis}": axis.exposed_s, f"hidden along {axis.axis}": axis.hidden_s}
    return figures
