"""Write a validation for a person: tables and what they come to. No torch."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from engine.grid import Grid
from engine.output import columns
from engine.result import metrics
from engine.validation.document import (
    CLOSE,
    PLANNED,
    RULES,
    TOP,
    DeviceProducts,
    Effect,
    GridRow,
    JobRows,
    Proof,
    PublishedRow,
    Validation,
    count_close,
    judge_orders,
)
from engine.validation.parts import NAMES, Parts
from engine.validation.trainer_rows import TrainerRow, judge, rules

_Row = TypeVar("_Row")
Column = tuple[str, Callable[[_Row], str]]


def as_text(found: Validation) -> str:
    parts = [_published(found.published)] if found.published else []
    parts += [_job(job) for job in found.jobs]
    if found.jobs:
        parts.append(_summary(found.jobs))
    if found.effects:
        parts.append(f"Effects, predicted and published\n{_effects(found.effects)}")
    parts += [_products(one) for one in found.products]
    parts += [trainers_text(found.trainers)] if found.trainers else []
    return "\n".join(parts)


def _error(predicted: float, measured: float) -> str:
    return f"{metrics.prediction_error(predicted, measured):+.1%}"


def _published(rows: Sequence[PublishedRow]) -> str:
    columns: list[Column[PublishedRow]] = [
        ("system", lambda row: row.system),
        ("model", lambda row: row.model),
        ("devices", lambda row: f"{row.devices:,}"),
        ("grid", lambda row: row.grid),
        ("published", lambda row: f"{row.measured_s:.2f} s"),
        ("predicted", lambda row: f"{row.predicted_s:.2f} s"),
        ("error", lambda row: _error(row.predicted_s, row.measured_s)),
        ("interval", lambda row: f"{row.low_s:.1f} to {row.high_s:.1f} s"),
        ("same % of peak", lambda row: f"{row.baseline_s:.2f} s"),
        ("its error", lambda row: _error(row.baseline_s, row.measured_s)),
        ("", lambda row: "fitted" if row.fitted else ""),
    ]
    title = "Published times of a batch; the papers print no grids, so the model's own choice is timed"
    text = f"{title}\n{_table(columns, rows)}"
    systems = list(dict.fromkeys(row.system for row in rows))
    for name, chosen in [*((s, [r for r in rows if r.system == s]) for s in systems), ("all", list(rows))]:
        if others := [row for row in chosen if not row.fitted]:
            ours = metrics.mean_absolute_error([metrics.prediction_error(r.predicted_s, r.measured_s) for r in others])
            flat = metrics.mean_absolute_error([metrics.prediction_error(r.baseline_s, r.measured_s) for r in others])
            within = sum(row.low_s <= row.measured_s <= row.high_s for row in others)
            text += (
                f"{name}, {len(others)} rows that nothing was fitted to: mean absolute error {ours:.1%}, of the same "
                f"share of the peak for all {flat:.1%}; {within} of {len(others)} within their intervals.\n"
            )
        missed = [row for row in chosen if row.fitted and not row.low_s <= row.measured_s <= row.high_s]
        if missed and name != "all":
            said = (f"{r.model} on {r.devices:,}, {_error(r.predicted_s, r.measured_s)}" for r in missed)
            text += f"{name}, fitted rows that lie outside of their own intervals: {'; '.join(said)}.\n"
    return text


def _job(job: JobRows) -> str:
    columns: list[Column] = [
        ("grid", lambda row: row.name),
        ("measured", lambda row: f"{row.measured_s:.3f} s"),
        ("predicted", lambda row: f"{row.predicted_s:.3f} s"),
        ("error", lambda row: _error(row.predicted_s, row.measured_s)),
        ("exposed", lambda row: f"{row.measured_exposed_s:.3f} s"),
        ("predicted", lambda row: f"{row.exposed_s:.3f} s"),
        ("place", lambda row: f"{row.place:g}"),
        ("by equations", lambda row: f"{row.place_by_equations:g}"),
        ("agnostic", lambda row: f"{row.place_agnostic:g}"),
        ("", lambda row: "fitted" if row.fitted else ""),
    ]
    title = (
        f"{job.name}: {job.model} on {job.system}, {job.sequences} {job.samples}, the fastest grid first; {job.source}"
    )
    text = f"{title}\n{_table(columns, job.grids)}"
    for order in job.orders:
        text += (
            f"order {order.name}: {order.efficient:g} of its first {TOP} among the {TOP} fastest, the fastest in place "
            f"{order.place_of_fastest:g}, rank correlation {order.spearman:.2f}"
            + (f", the first {order.lost:.1%} slower than the fastest\n" if order.lost is not None else "\n")
        )
    return text + _errors([row for row in job.grids if not row.fitted])


def _errors(rows: Sequence[GridRow]) -> str:
    """Say how far off runs are predicted, and of what parts: errors of compute and of what is exposed may cancel."""
    waits = [(row.exposed_s, row.measured_exposed_s) for row in rows if row.measured_exposed_s]
    parts = {
        "time": [metrics.prediction_error(row.predicted_s, row.measured_s) for row in rows],
        "compute": [row.compute_error for row in rows if row.measured_s > row.measured_exposed_s],
        "exposed communication": [metrics.prediction_error(predicted, measured) for predicted, measured in waits],
    }
    columns: list[Column[tuple[str, list[float]]]] = [
        ("", lambda part: part[0]),
        ("median absolute error", lambda part: f"{metrics.median_absolute_error(part[1]):.1%}"),
        (f"within {CLOSE:.0%}", lambda part: f"{sum(abs(one) <= CLOSE for one in part[1])} of {len(part[1])}"),
        ("from", lambda part: f"{min(part[1]):+.0%}"),
        ("to", lambda part: f"{max(part[1]):+.0%}"),
    ]
    known = [(name, errors) for name, errors in parts.items() if errors]
    title = f"of {len(rows)} runs that nothing was fitted to {_within(rows)} within their intervals; errors:"
    return f"{title}\n{_table(columns, known) if known else ''}"


def _within(rows: Sequence[GridRow]) -> int:
    return sum(row.low_s <= row.measured_s <= row.high_s for row in rows)


def _summary(jobs: Sequence[JobRows]) -> str:
    """Say how often intervals hold, which order has proved best, and what each has done."""
    rest = [row for job in jobs for row in job.grids if not row.fitted]
    text = f"all jobs: {_within(rest)} of {len(rest)} runs that nothing was fitted to within their intervals"
    if piped := [row for row in rest if Grid.parse(row.grid).stages > 1]:
        flat = [row for row in rest if row not in piped]
        text += f", {_within(flat)} of {len(flat)} of one stage and {_within(piped)} of {len(piped)} pipelines"
    text += "\n"
    if not (proofs := judge_orders(job.orders for job in jobs)):
        return text
    columns: list[Column[Proof]] = [
        ("order", lambda proof: proof.name),
        ("its first grids lose", lambda proof: f"{proof.lost:.1%}"),
        ("they are the fastest in", lambda proof: f"{proof.right} of {proof.jobs} jobs"),
        ("rank correlation", lambda proof: f"{proof.spearman:.2f}"),
    ]
    return f"{text}Orders over all jobs, the best first. {PLANNED}\n{_table(columns, proofs)}"


def _effects(effects: Sequence[Effect]) -> str:
    def published(effect: Effect) -> str:
        low, high = effect.published_low, effect.published_high
        return f"{low:g} {effect.unit}" if low == high else f"{low:g} to {high:g} {effect.unit}"

    columns: list[Column] = [
        ("what", lambda effect: effect.name),
        ("where", lambda effect: effect.setting),
        ("predicted", lambda effect: f"{effect.predicted:.3g} {effect.unit}"),
        ("published", published),
        ("off", lambda effect: f"{effect.off:+.0%}" if effect.off else ""),
    ]
    reasons: dict[str, list[str]] = defaultdict(list)
    for effect in effects:
        if abs(effect.off) > CLOSE and effect.reason:
            reasons[effect.reason].append(effect.name)
    said = [f"{'; '.join(dict.fromkeys(names))}. The reason: {reason}." for reason, names in reasons.items()]
    return _table(columns, effects) + "".join(f"Off by more than {CLOSE:.0%}: {one}\n" for one in said)


def _products(found: DeviceProducts) -> str:
    columns: list[Column[str]] = [
        ("job", str),
        ("share of the peak, by others", lambda job: f"{found.fitted[job]:.1%}"),
        ("products", lambda job: f"{len(found.of(job))}"),
        (f"within {CLOSE:.0%}", lambda job: f"{count_close(found.of(job))}"),
        ("median error", lambda job: f"{metrics.median_absolute_error([row.error for row in found.of(job)]):.1%}"),
        ("at one rate", lambda job: f"{count_close(found.of(job), at_one_rate=True)}"),
    ]
    ours, flat = ([count_close(rows, at_one_rate=one) for rows in (found.rows, found.long)] for one in (False, True))
    return (
        f"Products alone on {found.device} in {found.precision}, {found.source};\n{RULES[found.rule]}, "
        f"{1e6 * found.kernel_s:.3g} us\n{_table(columns, list(found.fitted))}"
        f"all jobs: {ours[0]} of {len(found.rows)} within {CLOSE:.0%}, at one rate {flat[0]}; of those that take more "
        f"than twice what a kernel does {ours[1]} of {len(found.long)}, at one rate {flat[1]}\n"
    )


def trainers_text(rows: Sequence[TrainerRow]) -> str:
    """Write the rows of trainers and the verdict on those that nothing was fitted to."""
    columns: list[Column[TrainerRow]] = [
        ("system", lambda row: row.system),
        ("model", lambda row: row.model),
        ("devices", lambda row: f"{row.devices:,}"),
        ("sequence", lambda row: f"{row.sequence:,}"),
        ("micro-batch", lambda row: f"{row.micro_batch:,}"),
        ("recomputed", lambda row: row.recomputed),
        ("compiled", lambda row: "yes" if row.compiled else ""),
        ("published", lambda row: f"{row.measured_s:.3f} s"),
        ("predicted", lambda row: f"{row.predicted_s:.3f} s"),
        ("error", lambda row: _error(row.predicted_s, row.measured_s)),
        ("interval", lambda row: f"{row.low_s:.2f} to {row.high_s:.2f} s"),
        ("by data sheets", lambda row: _error(row.by_sheets_s, row.measured_s)),
        ("", lambda row: "" if row.use == "judged" else row.use),
        ("lacking", lambda row: row.lacking),
    ]
    limits = rules().limits
    said = "".join(
        f"{one.system}, {one.judged} judged rows: median absolute error {one.median:.1%} (interval "
        f"{one.median_interval.low:.1%} to {one.median_interval.high:.1%}; limit {limits.median:.0%}: {one.close}), by "
        f"data sheets alone {one.by_sheets:.1%}; {one.held} of {one.judged} within their intervals (share "
        f"{one.held_interval.low:.0%} to {one.held_interval.high:.0%}; limit {limits.held:.0%}: {one.holds}).\n"
        for one in judge(rows, limits)
    )
    return f"Trainers' tables of machines that nobody has calibrated, a step each\n{_table(columns, rows)}{said}"


def parts_text(rows: Sequence[tuple[TrainerRow, Parts]]) -> str:
    """Write where the predicted time of trainers' rows goes."""
    columns: list[Column[tuple[TrainerRow, Parts]]] = [
        ("system", lambda one: one[0].system),
        ("model", lambda one: one[0].model),
        ("devices", lambda one: f"{one[0].devices:,}"),
        ("sequence", lambda one: f"{one[0].sequence:,}"),
        ("compiled", lambda one: "yes" if one[0].compiled else ""),
        ("published", lambda one: f"{one[0].measured_s:.3f} s"),
        ("predicted", lambda one: f"{one[0].predicted_s:.3f} s"),
    ]
    columns += [(name, partial(_part, name)) for name in NAMES]
    return f"Parts of the predicted steps\n{_table(columns, rows)}"


def _part(name: str, one: tuple[TrainerRow, Parts]) -> str:
    return f"{getattr(one[1], name):.3f} s"


def _table(cells: Sequence[Column], rows: Sequence) -> str:
    words = [[cell(row) for _, cell in cells] for row in rows]
    return columns([[head for head, _ in cells], *words]) + "\n"
