"""Write a plan for a person: the table of its best grids, and why a grid costs what it does. No torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from engine.grid import CUTTING_STAGES, Axis, Grid
from engine.output import columns
from engine.planning.document import GridPlan, PlannedMemory, Row, describe
from engine.planning.equations import (
    MESSAGES,
    MOVED,
    PANELS,
    all_gather_z,
    all_reduce_data,
    all_reduce_x,
    all_reduce_y,
    reduce_scatter_z,
)
from engine.planning.rank import CLEARLY, TOLERANCE, WIDEST, tied
from engine.simulator.bandwidth import Bandwidths
from engine.tensor_mode import ALGORITHM_1

EQUATIONS = {
    all_gather_z.__name__: "Eq. 1: weights gathered",
    reduce_scatter_z.__name__: "Eq. 2: weight gradients scattered",
    all_reduce_y.__name__: "Eq. 3: outputs summed",
    all_reduce_x.__name__: "Eq. 4: input gradients summed",
    all_reduce_data.__name__: "Eq. 5: weight gradients summed",
    MOVED: "features moved between x and y",
    PANELS: "panels broadcast and summed on the square",
    MESSAGES: "activations and their gradients sent",
}
"""The numbers are those of axonn-sc24."""
PARTS = {
    "state": "weights, gradients and optimizer",
    "activations": "activations",
    "weights": "gathered weights",
    "cache": "cached weights",
    "logits": "logits",
    "gradients": "gradients on their way",
}
NOT_STEPPED = "No optimizer steps the weights: times are those of gradients, and no rank has moments or fp32 weights."
OFFLOADED = (
    "Matrices and their moments lie on the host, in fp32; the way from there and back, 24 bytes of each element a "
    "batch, takes time that is not in the table, as no file has the bandwidth between host and device."
)
LAST = {False: "It is the last one that fits.", True: "It is the last one that was simulated."}
Column = tuple[str, str, Callable[[Row], str | None]]
_Key = TypeVar("_Key", bound=str)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{f'{value:#.3g}'.rstrip('.')} s" if value < 1000 else f"{value:,.0f} s"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _interval(row: Row) -> str | None:
    return row.interval_s and f"{row.interval_s[0]:.3g} to {row.interval_s[1]:.3g} s"


COLUMNS: tuple[Column, ...] = (
    ("", "", lambda row: f"{row.place}"),
    ("grid", "XxYxZxDATA", lambda row: row.grid),
    ("micro-", "batch", lambda row: f"{row.micro_batch}"),
    ("", "schedule", lambda row: row.schedule),
    ("tensor", "mode", lambda row: None if row.tensor_mode == ALGORITHM_1.name else row.tensor_mode),
    ("blocks re-", "computed", lambda row: None if row.recomputed_blocks is None else f"{row.recomputed_blocks}"),
    ("time per", "batch", lambda row: _seconds(row.time_s)),
    ("", "interval", _interval),
    ("exposed", "comm.", lambda row: None if row.exposed_s is None else _seconds(sum(row.exposed_s.values()))),
    ("comm. by", "equations", lambda row: _seconds(row.equations_s)),
    ("comm.", "as run", lambda row: _seconds(row.as_run_s)),
    ("memory", "a device", lambda row: f"{row.memory.total / 1e9:#.3g} GB"),
    ("of the", "device", lambda row: _share(row.memory.of_device)),
    ("", "HFU", lambda row: _share(row.hfu)),
    ("", "MFU", lambda row: _share(row.mfu)),
    ("for the budget", "days", lambda row: None if row.days is None else f"{row.days:.1f}"),
    ("device-", "hours", lambda row: None if row.device_hours is None else f"{row.device_hours:,.0f}"),
)


def head(plan: GridPlan) -> str:
    """Write what was planned, how many grids there are, and by what they are ordered."""
    asked = "" if plan.sequences == plan.asked_sequences else f" (for {plan.asked_sequences:,.1f} asked for)"
    valid = f"{plan.valid} grids are valid" if plan.valid else "only pipelines are valid"
    fit = f"{plan.fit} of {plan.valid} valid grids fit" if plan.valid else "only pipelines are valid, and some fit"
    if plan.device_memory_bytes is None:
        fit = f"{valid}; whether they fit in memory is not known: --device-memory would tell"
    else:
        memory = plan.device_memory_bytes / 1e9
        fit = f"{fit} in {memory * (1 - plan.reserve):.4g} GB, {1 - plan.reserve:.0%} of a device's {memory:.4g} GB"
    tokens = "" if plan.samples == "images" else f", {plan.tokens:,} tokens"
    nodes = "on one node" if plan.devices <= plan.devices_per_node else f"nodes of {plan.devices_per_node}"
    order = f"axonn-sc24's Eq. 1 to {'7' if plan.placement_aware else '6, without placement'}"
    lines = [
        f"{plan.model} on {plan.devices:,} devices of {plan.system}, {nodes}.",
        f"Batches of {plan.sequences:,} {plan.samples}{asked}{tokens}; {plan.precision}, activations "
        f"{plan.activations}, overlap {plan.overlap}.",
    ]
    if plan.token_budget is not None and any(row.days is not None for row in plan.rows):
        lines.append(f"Days and device-hours are those of {plan.token_budget:.3g} tokens, restarts not counted.")
    if plan.training.offload:
        lines.append(OFFLOADED)
    if plan.training.optimizer == "none":
        lines.append(NOT_STEPPED)
    best = f"{fit}; best first by {order}."
    if plan.ordered_by == "simulated":
        best = (
            f"{fit}; those that communicate least by {order} were simulated, the fastest first, and before it what is "
            "as fast, as far as that can be told, and communicates less."
        )
    origin = [describe(plan.machine)] if plan.machine else []
    return "\n".join([*lines, best, *origin]) + "\n"


def table(rows: Sequence[Row]) -> str:
    """Write one line a grid; a column of which no row has a value is left out."""
    every = [(head, [cell(row) for row in rows]) for *head, cell in COLUMNS]
    shown = [[*head, *(cell or "-" for cell in cells)] for head, cells in every if any(cells)]
    return columns(zip(*shown, strict=True)) + "\n"


def explained(plan: GridPlan, row: Row, after: Row | None, bandwidths: Bandwidths) -> str:
    """Explain one grid: its seconds by equation and axis, why each axis has its bandwidth, its memory by parts, and
    how the grid after it differs.
    """
    grid = Grid.parse(row.grid)
    lines = [f"Number {row.place}, grid {grid}: {_seconds(row.equations_s)} of communication a batch by the equations."]
    costs = sorted((cost for cost in row.costs if cost.equations_s), key=lambda cost: -cost.equations_s)
    for cost in costs:
        what = f"{EQUATIONS[cost.equation]} over {cost.axis}"
        lines.append(f"  {what:<46}{_seconds(cost.equations_s):>8}{_seconds(cost.as_run_s):>10} as run")
    if row.time_s is not None:
        waits = {axis: seconds for axis, seconds in (row.exposed_s or {}).items() if seconds > 0}
        exposed = ", ".join(f"{_seconds(s)} over {a}" for a, s in _largest_first(waits)) or "none"
        lines.append(
            f"A batch takes {_seconds(row.time_s)}: {_seconds(row.compute_s)} of compute, which hides "
            f"{_seconds(row.hidden_s)} of communication; exposed: {exposed}."
        )
    lines.append(f"A training takes it by {' '.join(plan.words(row))}.")
    used = [axis for axis in Axis if grid[axis] > 1]
    lines += [_bandwidth(plan, grid, axis, row.bytes_per_s[axis], bandwidths) for axis in used]
    lines += _summed(row, grid, plan.precision)
    lines.append(_memory(row.memory, plan))
    lines += [LAST[plan.ordered_by == "simulated"]] if after is None else _compared(row, after)
    return "\n".join(lines) + "\n"


def _bandwidth(plan: GridPlan, grid: Grid, axis: Axis, bytes_per_s: float, bandwidths: Bandwidths) -> str:
    begun = f"Over {axis}, {grid[axis]} ranks find {bytes_per_s / 1e9:.3g} GB/s"
    if not plan.placement_aware:
        return f"{begun}, as all do without placement."
    if axis is CUTTING_STAGES:
        where = "stages on two nodes" if bandwidths.hop_leaves_node(grid) else "stages, all of which stay in their node"
        return f"Over {axis}, messages find {bytes_per_s / 1e9:.3g} GB/s between {where}."
    inner = grid.stride(axis)
    if inner * grid[axis] <= plan.devices_per_node:
        return f"{begun}: their group lies in one node."
    rings = min(plan.devices_per_node, inner)
    if bytes_per_s < bandwidths.inter / rings * (1 - TOLERANCE):
        return f"{begun}: their group leaves its nodes, and those of it on a node send no more."
    if rings == 1:
        return f"{begun}: their group leaves its nodes, and no other ring does."
    return f"{begun}: their group leaves its nodes, where {rings} rings share {bandwidths.inter / 1e9:.3g} GB/s."


def _summed(row: Row, grid: Grid, precision: str) -> list[str]:
    """Name the format in which gradients are sent along each axis that sums them."""
    found = {axis: dtype for axis, dtype in row.reduce_dtypes.items() if grid[axis] > 1}
    if not found:
        return []
    wider = f", for {precision} loses too much over so many ranks" if set(found.values()) != {precision} else ""
    return [f"Gradients are summed {' and '.join(f'over {a} in {dtype}' for a, dtype in found.items())}{wider}."]


def _memory(memory: PlannedMemory, plan: GridPlan) -> str:
    needed = _largest_first({part: number for part, number in memory.parts.items() if number})
    parts = ", ".join(f"{number / 1e9:.3g} GB of {PARTS.get(part, part)}" for part, number in needed)
    if plan.device_memory_bytes is None:
        return f"A rank needs {memory.total / 1e9:.3g} GB: {parts}."
    return f"A rank needs {memory.total / 1e9:.3g} of its device's {plan.device_memory_bytes / 1e9:.3g} GB: {parts}."


def _largest_first(numbers: Mapping[_Key, float]) -> list[tuple[_Key, float]]:
    return sorted(numbers.items(), key=lambda item: -abs(item[1]))


def _compared(row: Row, after: Row) -> list[str]:
    """Write what the next grid has more of, and less."""
    own, other = row.equations_s, after.equations_s
    name = f"The next, grid {after.grid},"
    if row.time_s is not None and after.time_s is not None:
        lines = [f"{name} takes {_difference(after.time_s - row.time_s)}: {_split(row, after)}."]
        if after.time_s < row.time_s:
            lines.append("That is too little to tell which is faster, and by the equations it communicates more.")
    elif tied(own, other):
        lines = [f"{name} costs the same, and comes later because {_tie(row, after)}."]
    elif own > other:
        lines = [f"{name} costs {_seconds(own - other)} less, but lays planes of x and y across the border of nodes."]
    else:
        more = f" ({100 * (other / own - 1):.2g} %)" if own else ""
        by_axis = {axis: _along(after, axis) - _along(row, axis) for axis in Axis}
        changed = [(axis, by) for axis, by in _largest_first(by_axis) if not tied(own, own + abs(by))]
        parts = [f"{_seconds(abs(by))} {'more' if by > 0 else 'less'} over {axis}" for axis, by in changed]
        lines = [f"{name} costs {_seconds(other - own)} more{more}: {', '.join(parts)}."]
    memory = after.memory.total - row.memory.total
    if abs(memory) >= 1e8:
        lines.append(f"It needs {abs(memory) / 1e9:.3g} GB {'more' if memory > 0 else 'less'} on each device.")
    if row.micro_batch != after.micro_batch:
        lines.append(f"Its micro-batches are of {after.micro_batch}, not {row.micro_batch}.")
    if row.recomputed_blocks != after.recomputed_blocks:
        lines.append(f"It recomputes {after.recomputed_blocks} blocks, not {row.recomputed_blocks}.")
    if row.tensor_mode != after.tensor_mode:
        lines.append(f"Its tensor mode is {after.tensor_mode}, not {row.tensor_mode}.")
    return lines


def _split(row: Row, after: Row) -> str:
    """Write where the time of the next grid differs most: in compute, or in what is exposed of an axis."""
    own, others = row.exposed_s or {}, after.exposed_s or {}
    changes = {f"exposed over {axis}": others.get(axis, 0) - own.get(axis, 0) for axis in {*own, *others}}
    changes["compute"] = (after.compute_s or 0.0) - (row.compute_s or 0.0)
    largest = _largest_first(changes)
    return ", ".join(f"{_difference(by)} {what}" for what, by in largest if abs(by) > 0.05 * abs(largest[0][1]))


def _difference(seconds: float) -> str:
    return f"{_seconds(abs(seconds))} {'more' if seconds >= 0 else 'less'}"


def _along(row: Row, axis: Axis) -> float:
    return sum(cost.equations_s for cost in row.costs if cost.axis == axis)


def _tie(row: Row, after: Row) -> str:
    """Write by which rule of the order the next grid comes later (rank.py)."""
    own, other = Grid.parse(row.grid), Grid.parse(after.grid)
    clearly = after.as_run_s > row.as_run_s * (1 + CLEARLY)
    axis = next(axis for axis in WIDEST if own[axis] != other[axis])
    if own[axis] > other[axis] and not clearly:
        return f"its {axis} is smaller"
    if after.as_run_s < row.as_run_s:
        return "it lays planes of x and y across the border of nodes"
    return f"it costs {_seconds(after.as_run_s - row.as_run_s)} more as run"
