"""Write what a person reads of a training, and of what took turns. No torch."""

from engine.cli.common import facts, size
from engine.output import columns
from engine.result.schema import Result
from engine.result.schema.contest import GridSide, OptimisationSide, OverlapSide, ScheduleSide, TrainingSide


def trained(result: Result) -> str:
    """Write its figures, or a line for each overlap, schedule or grid, where several took turns."""
    return WRITTEN[result.kind](result) if result.contest else facts(_figures(result))


def _figures(result: Result) -> dict[str, str]:
    assert result.summary is not None
    assert result.memory is not None
    assert result.summary.samples_per_s is not None
    assert result.model is not None
    summary, losses = result.summary, [step.loss for step in result.iterations]
    share = "" if summary.hfu is None else f", {summary.hfu:.1%} of the peak"
    samples, tokens = f"{summary.samples_per_s:,.1f}/s", f"{summary.tokens_per_s:,.0f}/s"
    found = {
        "time of a step": f"{summary.time_per_iteration_s:.4g} s, mean of {summary.counted_iterations}",
        **({"images": samples} if result.model.vocabulary is None else {"samples": samples, "tokens": tokens}),
        "flop/s": f"{summary.hardware_flops_per_s:.4g}{share}",
        "loss": f"{losses[0]:.4f} at first, {losses[-1]:.4f} at last",
        "memory of a rank": f"{size(max(result.memory.peak_bytes_per_rank))} {result.memory.kind}",
    }
    if result.evaluations:
        of_text = result.model is not None and result.model.vocabulary is not None
        found["evaluation"] = result.evaluations[-1].told(of_text=of_text)
    if (scaling := result.loss_scaling) is not None:
        found["loss scale"] = f"{scaling.scale:,g} at last, {scaling.skipped} steps skipped"
    return found


def _overlaps(result: Result) -> str:
    rows = [_row(one) for one in result.sides(OverlapSide)]
    return columns([("overlap", "step, ms", "by that of none"), *rows], left=1)


def _schedules(result: Result) -> str:
    rows = [
        (
            *_row(one, one.label),
            f"{one.idle_share:.1%}",
            f"{one.simulated_idle_share:.1%}",
            "/".join(str(stage.most_held) for stage in one.stages),
            "/".join(str(stage.most_pending) for stage in one.stages),
        )
        for one in result.sides(ScheduleSide)
    ]
    heads = ("schedule", "step, ms", "by that of 1f1b", "idle", "simulated", "held", "pending")
    return columns([heads, *rows], left=1)


def _grids(result: Result) -> str:
    rows = [
        (
            one.grid,
            str(one.micro_batch),
            one.tensor_mode,
            *_row(one, one.schedule or ""),
            "" if one.predicted_s is None else f"{1e3 * one.predicted_s:.1f}",
        )
        for one in result.sides(GridSide)
    ]
    heads = ("grid", "micro-batch", "mode", "schedule", "step, ms", "by that of the first", "predicted, ms")
    return columns([heads, *rows], left=1)


def _optimisations(result: Result) -> str:
    def milliseconds(side: OptimisationSide, part: str) -> str:
        return f"{1e3 * getattr(side.breakdown, part):.1f}" if side.breakdown else ""

    rows = [
        (
            one.name,
            one.grid,
            "tuned" if one.tuned else "",
            one.overlap,
            f"{1e3 * one.time_per_iteration_s:.1f}",
            milliseconds(one, "compute_s"),
            milliseconds(one, "collectives_s"),
            str(one.over_former or ""),
            str(one.over_base or ""),
        )
        for one in result.sides(OptimisationSide)
    ]
    heads = ("side", "grid", "products", "overlap", "step, ms", "compute", "exposed", "by that before", "by baseline")
    return columns([heads, *rows], left=4)


def _row(side: TrainingSide, name: str | None = None) -> tuple[str, str, str]:
    """Write what every side of a contest has."""
    return side.name if name is None else name, f"{1e3 * side.time_per_iteration_s:.1f}", str(side.over_base or "")


WRITTEN = {"ablation": _overlaps, "pipeline": _schedules, "grids": _grids, "optimisations": _optimisations}
