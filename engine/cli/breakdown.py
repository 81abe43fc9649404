"""`breakdown` says where the time of a profiled step went. No torch."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from engine.cli.common import Json
from engine.options import File
from engine.output import say

if TYPE_CHECKING:
    from engine.result.schema.profile import TraceBreakdown

MOST = 10
"""A table has so many rows."""
NAME = 44
"""A name has so many columns."""
EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}
VERDICTS = {
    "pass": "By {steps} the trace agrees with the record.",
    "fail": "By {steps} the trace disagrees with the record: one of the two is wrong.",
    "undecided": "Whether the trace agrees with the record is undecided by {steps}.",
}


def breakdown(
    trace: Annotated[File, Parameter(help="a file that train --profile has written")],
    /,
    *,
    iteration: Annotated[int | None, Parameter(help="of those in it (default: the last)")] = None,
    json: Json = False,
) -> int:
    """Say where the time of a profiled step went: compute, exposed and hidden communication, copies, idle.

    Compute that stands still for a collective is exposed communication; hidden is compute with a collective in flight.
    The figures come from the trace alone; whether the run's own record agrees is told at the end, of this step and of
    all steps of the trace.

    Exit codes: 0 told; 1 told, and the trace disagrees with the record; 2 the file can't be read as asked; 3 told, and
    it is undecided whether they agree, as of fewer than six steps.
    """
    from engine.profiling.breakdown import break_down

    found = break_down(trace, iteration)
    say(found.to_json() if json else f"{described(found)}\n")
    return EXIT_CODES[found.outcome]


def described(found: "TraceBreakdown") -> str:
    """Write the breakdown for a person."""
    blocks = [_step(found), _communication(found), _operations(found), _layers(found), [*found.notes, agreement(found)]]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _step(found: "TraceBreakdown") -> list[str]:
    from engine.result.metrics import share_of_step

    on_cpus = found.device == "cpu"
    shares = {
        "step": found.step_s,
        "compute": found.compute_s,
        "  operators" if on_cpus else "  kernels": found.work_s,
        "  copies": found.copies_s,
        "  outside operators" if on_cpus else "  idle": found.rest_s,
        "exposed communication": found.exposed_s,
        "hidden communication": found.hidden_s,
    }
    head = (
        f"Iteration {found.iteration} on rank {found.rank} of {found.ranks}, grid {found.grid}, overlap "
        f"{found.overlap}, {'CPUs' if on_cpus else 'a GPU'}"
    )
    rows = [f"{name:<24}{s:10.4f} s{share_of_step(s, found.step_s):8.1%}" for name, s in shares.items()]
    if found.share_hidden is not None:
        rows[-1] += f"   behind compute: {found.share_hidden:.0%} of communication"
    return [head, "", *rows]


def _communication(found: "TraceBreakdown") -> list[str]:
    axes = [f"{axis.axis:<24}{axis.exposed_s:10.4f} s{axis.hidden_s:10.4f} s" for axis in found.axes]
    lanes = [f"{lane.lane:<24}{lane.busy_s:10.4f} s" for lane in found.lanes]
    if not axes:
        return []
    return [f"{'axis':<24}{'exposed':>12}{'hidden':>12}", *axes, "", f"{'lane':<24}{'in flight':>12}", *lanes]


def _operations(found: "TraceBreakdown") -> list[str]:
    rows = [f"{_cut(o.name):<{NAME}}{o.calls:8d}{o.time_s:10.4f} s" for o in found.operations[:MOST]]
    head = "operator, without those it calls" if found.device == "cpu" else "kernel"
    return [f"{head:<{NAME}}{'calls':>8}{'time':>12}", *rows] if rows else []


def _layers(found: "TraceBreakdown") -> list[str]:
    rows = [f"{_cut(o.name):<{NAME}}{o.forward_s:10.4f} s{o.backward_s:10.4f} s" for o in found.layers[:MOST]]
    return [f"{'layer':<{NAME}}{'forward':>12}{'backward':>12}", *rows] if rows else []


def _cut(name: str) -> str:
    """Keep both ends of a long name: kernels differ at one, operators at the other."""
    half = (NAME - 4) // 2
    return name if len(name) < NAME else f"{name[:half]}...{name[-half:]}"


def agreement(found: "TraceBreakdown") -> str:
    """Say whether the trace agrees with the run's own record, by all its steps, and which figures of this one don't."""
    from engine.profiling.breakdown import AGREEMENT

    agreeing = [d for d in found.differences if d.difference <= AGREEMENT]
    largest = max((d.difference for d in agreeing), default=0.0)
    others = [d for d in found.differences if d not in agreeing]
    figures = f"{len(agreeing)} of {len(found.differences)} figures" if others else "All figures"
    end = ", and not:" if others else "."
    lines = [f"{figures} of this step are those of the run's own record within {largest:.1%}{end}"]
    lines += [f"  {d.figure}: {d.traced_s:.4f} s, in the record {d.recorded_s:.4f} s" for d in others]
    lines += dict.fromkeys(d.reason for d in others if d.reason is not None)
    lines.append(VERDICTS[found.outcome].format(steps=_steps(found.steps)))
    for d in found.differences:
        if d.outcome != "pass" and d.low is not None and d.high is not None:
            lines.append(f"  {d.figure}: {d.low:.3f} to {d.high:.3f} of the record")
    if found.outcome == "undecided" and found.steps < 6:
        lines.append("It takes six steps or more: train --profile-iterations 4..15, for instance.")
    return "\n".join(lines)


def _steps(number: int) -> str:
    return "its only step" if number == 1 else f"its {number} steps"
