"""Where the time of a profiled step went, by its trace, and whether the run's own record says the same. No torch."""

from pathlib import Path

from engine.profiling import on_device, on_host, trace
from engine.profiling.ran import Ran
from engine.result import metrics
from engine.result.profile import Difference, RecordedStep, TraceBreakdown

AGREEMENT = 0.02
NOTED_LATE = (
    "The run notes the end of a collective once gloo's thread has its turn with Python's lock, up to {late_ms:.1f} ms "
    "after gloo's own end of it in the trace; with the ends that the run noted the trace has {noted_s:.4f} s."
)
UNNOTED = "Between the run's clock and the profiler's lies what naming and tracing take, most on a machine under load."
BY_EVENTS = (
    "The run times events on the computing stream, the trace kernels: what the host issues late, and what lies between "
    "an event and its kernel, is in one of them only."
)


def break_down(path: Path, iteration: int | None = None) -> TraceBreakdown:
    """One step of a trace, the last unless an iteration is named. Raises TraceError."""
    step = trace.read(path, iteration)
    try:
        ran = (on_device if step.about.device == "cuda" else on_host).ran(step)
    except (KeyError, TypeError, ValueError):
        raise trace.TraceError(f"{path} is damaged: its events lack what a profile has. Take it once more.") from None
    differences = _differences(ran, step.recorded, step.about.device)
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
        agrees=all(difference.difference <= AGREEMENT for difference in differences),
        notes=tuple(ran.notes),
    )


def _differences(ran: Ran, recorded: RecordedStep, device: str) -> tuple[Difference, ...]:
    traced, own, noted = _figures(_recorded(ran, recorded.iteration)), _figures(recorded), dict[str, float]()
    if (as_noted := ran.as_noted()) is not None:
        noted = _figures(_recorded(as_noted, recorded.iteration))
    late_s = max((late.done - f.done for late, f in zip(ran.flights_as_noted, ran.flights, strict=False)), default=0.0)

    def compared(figure: str) -> Difference:
        traced_s, own_s = traced.get(figure, 0.0), own.get(figure, 0.0)
        difference, reason = metrics.trace_difference(traced_s, own_s, recorded.step_s), None
        if difference > AGREEMENT:
            reason = BY_EVENTS if device == "cuda" else UNNOTED
            if figure in noted and metrics.trace_difference(noted[figure], own_s, recorded.step_s) <= AGREEMENT:
                reason = NOTED_LATE.format(late_ms=1e3 * late_s, noted_s=noted[figure])
        return Difference(figure=figure, traced_s=traced_s, recorded_s=own_s, difference=difference, reason=reason)

    return tuple(compared(figure) for figure in dict.fromkeys([*own, *traced]))


def _recorded(ran: Ran, iteration: int) -> RecordedStep:
    """What the trace has of what the run records."""
    return RecordedStep(
        iteration=iteration, step_s=ran.step_s, exposed_s=ran.exposed_s, hidden_s=ran.hidden_s, axes=ran.axes()
    )


def _figures(step: RecordedStep) -> dict[str, float]:
    """By what they are called; seconds."""
    found = {
        "step": step.step_s,
        "compute": step.step_s - step.exposed_s,
        "exposed": step.exposed_s,
        "hidden": step.hidden_s,
    }
    for axis in step.axes:
        found |= {f"exposed along {axis.axis}": axis.exposed_s, f"hidden along {axis.axis}": axis.hidden_s}
    return found
