"""Breakdown of a profiled step by its trace, compared with the run's own record. No torch.

A trace agrees with the record if every figure does: the whole interval of the traced by the recorded, over the steps of
the trace, lies within AGREEMENT of 1. It disagrees if one lies outside, or events are missing. Of fewer than six steps
nothing is known beyond these steps: then it is undecided, and so is a figure that lies outside by the trace's ends of
collectives and does not by those that the run noted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.profiling import trace
from engine.profiling.ran import Ran
from engine.profiling.steps import read_step
from engine.result import gate, metrics
from engine.result.gate import NOTHING_KNOWN, Interval, Outcome, over_rounds
from engine.result.schema.profile import Difference, RecordedStep, TraceBreakdown

AGREEMENT = 0.02
NOTED_LATE = (
    "The run notes the end of a collective once gloo's thread has its turn with Python's lock, up to {late_ms:.1f} ms "
    "after gloo's own end of it in the trace; with the ends that the run noted the trace has {noted_s:.4f} s."
)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Figure of one step by the trace and by the record."""

    traced_s: float
    recorded_s: float
    ratio: float
    """metrics.trace_by_record"""
    noted_s: float | None = None
    """With the ends of collectives that the run noted, where the trace has them; likewise as_noted, its ratio."""
    as_noted: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether the trace agrees with the record in this step."""
        return abs(self.ratio - 1) <= AGREEMENT

    @property
    def noted(self) -> float:
        """Ratio with the noted ends, or where there are none the ratio."""
        return self.ratio if self.as_noted is None else self.as_noted


def break_down(path: Path, iteration: int | None = None) -> TraceBreakdown:
    """Break down one step of a trace, the last unless an iteration is named. Raises TraceError."""
    steps = trace.read(path)
    place = trace.place_of(path, steps, iteration)
    try:
        every = [read_step(step) for step in steps]
    except (KeyError, TypeError, ValueError):
        raise trace.TraceError(f"{path} is damaged: its events lack what a profile has. Take it once more.") from None
    compared = [_compared(one, step.recorded) for one, step in zip(every, steps, strict=True)]
    step, ran, lost = steps[place], every[place], sum(one.lost for one in every)
    differences = tuple(
        _difference(figure, of, [one[figure] for one in compared if figure in one], _late_s(ran))
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
        agrees=not ran.lost and all(one.agrees for one in compared[place].values()),
        steps=len(steps),
        lost=lost,
        outcome="fail" if lost else outcome,
        notes=tuple(ran.notes),
    )


def _difference(figure: str, of: _Compared, steps: Sequence[_Compared], late_s: float) -> Difference:
    """Judge the difference in one step with the figure in all steps."""
    between = over_rounds([one.ratio for one in steps])
    outcome = _within(between)
    if outcome == "fail" and _within(over_rounds([one.noted for one in steps])) != "fail":
        outcome = "undecided"
    known = between != NOTHING_KNOWN
    explained = not of.agrees and abs(of.noted - 1) <= AGREEMENT
    reason = NOTED_LATE.format(late_ms=1e3 * late_s, noted_s=of.noted_s) if explained else None
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


def _within(between: Interval) -> Outcome:
    return gate.within(between, 1 - AGREEMENT, 1 + AGREEMENT)


def _late_s(ran: Ran) -> float:
    """Return how much later than gloo, at most, the run noted the end of a collective."""
    return max(
        (late.done - f.done for late, f in zip(ran.collectives_as_noted, ran.collectives, strict=False)), default=0.0
    )


def _compared(ran: Ran, recorded: RecordedStep) -> dict[str, _Compared]:
    """Compare every figure of a step that the trace has, by name."""
    traced, own = _figures(_recorded(ran, recorded.iteration)), _figures(recorded)
    as_noted = ran.as_noted()
    noted = {} if as_noted is None else _figures(_recorded(as_noted, recorded.iteration))

    def ratio(seconds: float, figure: str) -> float:
        return metrics.trace_by_record(seconds, own.get(figure, 0.0), recorded.step_s)

    return {
        figure: _Compared(
            traced_s=traced.get(figure, 0.0),
            recorded_s=own.get(figure, 0.0),
            ratio=ratio(traced.get(figure, 0.0), figure),
            noted_s=noted.get(figure),
            as_noted=ratio(noted[figure], figure) if figure in noted else None,
        )
        for figure in dict.fromkeys([*own, *traced])
    }


def _recorded(ran: Ran, iteration: int) -> RecordedStep:
    """Return those figures of the trace that the run records, too."""
    return RecordedStep(
        iteration=iteration, step_s=ran.step_s, exposed_s=ran.exposed_s, hidden_s=ran.hidden_s, axes=ran.axes()
    )


def _figures(step: RecordedStep) -> dict[str, float]:
    """Name the figures, which are seconds."""
    found = {
        "step": step.step_s,
        "compute": step.step_s - step.exposed_s,
        "exposed": step.exposed_s,
        "hidden": step.hidden_s,
    }
    for axis in step.axes:
        found |= {f"exposed along {axis.axis}": axis.exposed_s, f"hidden along {axis.axis}": axis.hidden_s}
    return found
